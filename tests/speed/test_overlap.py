"""What a background thread makes ahead for a GPU is what would be made when it is needed, in order."""

import threading
import time

import pytest
import torch

from tmft.speed.overlap import BATCHES_AHEAD, constant_on, copied_behind, copy_to, made_ahead

CPU, GPU = torch.device("cpu"), torch.device("cuda")  # the GPU itself is not used


@pytest.mark.parametrize("device", [CPU, GPU])
def test_results_come_in_order_from_any_iterable(device):
    assert list(made_ahead(lambda n: n * n, iter(range(20)), device)) == [n * n for n in range(20)]
    assert list(made_ahead(str, [], device)) == []


def test_a_cpu_makes_nothing_ahead_and_a_gpu_makes_a_few():
    for device, expected in ((CPU, 1), (GPU, 1 + BATCHES_AHEAD)):
        made = []
        results = made_ahead(lambda n, made=made: made.append(n), range(20), device)
        next(results)
        time.sleep(0.2)
        assert len(made) == expected
        results.close()


def test_several_are_made_in_one_other_thread_and_a_single_one_here():
    for count, expected in ((20, False), (1, True)):
        names = set(made_ahead(lambda n: threading.current_thread().name, range(count), GPU))
        assert len(names) == 1 and (threading.current_thread().name in names) == expected


@pytest.mark.parametrize("device", [CPU, GPU])
def test_an_error_is_raised_where_its_result_is_needed(device):
    def make(n):
        return 1 // (3 - n)

    results, seen = made_ahead(make, range(20), device), []
    with pytest.raises(ZeroDivisionError):
        seen.extend(results)
    assert seen == [0, 0, 1]


def test_who_stops_early_leaves_no_thread_behind():
    before = threading.active_count()
    results = made_ahead(str, range(1000), GPU)
    next(results)
    results.close()
    assert threading.active_count() == before


def test_on_a_cpu_tensors_are_passed_on_as_they_are():
    tensors = [torch.rand(2) for _ in range(3)]
    passed = list(copied_behind(enumerate(tensors)))
    assert [number for number, _ in passed] == [0, 1, 2]
    assert all(one is other for (_, one), other in zip(passed, tensors, strict=True))
    assert copy_to(tensors[0], CPU) is tensors[0]


def test_a_constant_is_made_once_for_a_gpu_and_can_be_trained_with_after_encoding():
    made = []

    def make(n):
        made.append(n)
        return torch.arange(n)

    device = torch.device("meta")  # in place of a GPU
    with torch.inference_mode():
        first = constant_on(device, make, 3)
    assert constant_on(device, make, 3) is first and not first.is_inference()
    assert constant_on(device, make, 4) is not first and made == [3, 4]
    assert constant_on(CPU, make, 3).tolist() == [0, 1, 2] and made == [3, 4, 3]
