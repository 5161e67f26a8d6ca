"""On a CPU nothing is copied; what is constant is made once for a GPU."""

import torch

from tmft.speed.overlap import constant_on, copied_behind, copy_to

CPU = torch.device("cpu")


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
