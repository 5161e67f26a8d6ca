"""Where a run computes, in what precision, and with which other processes."""

import io
import threading
from contextlib import contextmanager

import pytest
import torch
import torch.distributed as dist
from torch import nn

from tmft.device import (
    PRECISIONS,
    MixedPrecision,
    choose_device,
    choose_precision,
    progress_bar,
    seed_generator,
)
from tmft.distributed import Processes, init_distributed
from tmft.errors import InputError

CPU = torch.device("cpu")
HUGE = 1e36  # finite; times the scale of the loss, 65536 at first, it is not


# ------------------------------------------------------------------------------- device and precision


@pytest.mark.parametrize(
    ("capabilities", "chosen"), [({"avx512_bf16": True}, "bf16"), ({"neon": True}, "fp32")]
)
def test_auto_precision_is_bf16_on_a_cpu_that_computes_in_it(capabilities, chosen, monkeypatch):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities)
    assert choose_precision("auto", CPU) == chosen
    assert [choose_precision(name, CPU) for name in PRECISIONS] == ["fp32", "bf16", "fp16"]


@pytest.mark.parametrize(("has_gpu", "chosen"), [(True, "cuda"), (False, "cpu")])
def test_auto_is_a_gpu_if_there_is_one(has_gpu, chosen, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_gpu)
    assert choose_device("auto") == torch.device(chosen) and choose_device("cpu") == CPU


@pytest.mark.parametrize("name", ["nonsense", "cuda:77"])
def test_a_device_that_is_not_there_is_one_clear_line(name):
    with pytest.raises(InputError, match=f"^device {name}: .*: use auto or cpu$") as error:
        choose_device(name)
    assert error.value.of_command().startswith(f"--device {name}: ")


@pytest.mark.parametrize("index", [None, 1])
def test_a_seed_is_for_the_gpu_that_computes_not_for_the_current_one(index, monkeypatch):
    current, seeded = [None], []

    @contextmanager
    def at(device):
        current[0] = device.index
        yield
        current[0] = None

    monkeypatch.setattr(torch.cuda, "device", at)
    monkeypatch.setattr(torch.cuda, "manual_seed", lambda seed: seeded.append((seed, current[0])))
    seed_generator(torch.device("cuda", index), 7)
    assert seeded == [(7, index)] and current == [None]


# ------------------------------------------------------------------------------------ mixed precision


def one_step(
    precision: str, factor: float = 1.0, max_norm: float = 1e9
) -> tuple[nn.Parameter, MixedPrecision, bool]:
    """A step of SGD with rate 1 on factor * (3 x + 4 y), from (0, 0) -> the weights, and what step said."""
    weight, slope = nn.Parameter(torch.zeros(2)), torch.tensor([3.0, 4.0])
    optimizer, amp = torch.optim.SGD([weight], lr=1.0), MixedPrecision(CPU, precision)
    amp.backward((weight * slope).sum() * factor)
    amp.clip(optimizer, [weight], max_norm)
    return weight, amp, amp.step(optimizer)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_clip_sees_the_true_gradients(precision):
    """Of norm 5: a limit of 10 leaves them as they are, a limit of 1 makes them five times smaller."""
    for max_norm, expected in [(10.0, [-3.0, -4.0]), (1.0, [-0.6, -0.8])]:
        weight, _, taken = one_step(precision, max_norm=max_norm)
        assert taken
        torch.testing.assert_close(weight.data, torch.tensor(expected), rtol=1e-5, atol=0)


def test_an_overflow_in_fp16_leaves_the_weights_and_halves_the_scale():
    weight, amp, taken = one_step("fp16", HUGE)
    assert not taken and weight.tolist() == [0.0, 0.0] and amp.scaler.get_scale() == 2**15
    weight, amp, taken = one_step("fp16")
    assert taken and amp.scaler.get_scale() == 2**16


@pytest.mark.parametrize(("precision", "scale"), [("fp32", 1.0), ("bf16", 1.0), ("fp16", 2.0**16)])
def test_only_fp16_scales_the_loss(precision, scale):
    weight = nn.Parameter(torch.zeros(2))
    MixedPrecision(CPU, precision).backward(weight.sum())
    assert weight.grad.tolist() == [scale, scale]


@pytest.mark.parametrize(("precision", "dtype"), PRECISIONS.items())
def test_products_inside_are_in_the_precision_and_outside_in_float32(precision, dtype):
    x, amp = torch.ones(4, 4), MixedPrecision(CPU, precision)
    for _ in range(2):  # a block can be entered again
        with amp:
            assert (x @ x).dtype == dtype
        assert (x @ x).dtype == torch.float32


# ------------------------------------------------------------------------------------------ processes


def test_a_process_alone_is_the_first_and_sums_up_to_itself(monkeypatch):
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    alone = init_distributed("cpu")
    assert (alone.rank, alone.world_size, alone.device) == (0, 1, CPU)
    assert alone.all_reduce({"a": torch.tensor(2.0), "b": torch.tensor(3.0)}) == {"a": 2.0, "b": 3.0}
    alone.barrier()  # which waits for nobody
    with alone.main_process_first():
        pass


@pytest.mark.parametrize(("gpus", "local", "backend"), [(4, 4, "nccl"), (1, 4, "gloo"), (8, 4, "nccl")])
def test_nccl_is_for_processes_with_a_gpu_each(gpus, local, backend, monkeypatch):
    """It refuses two that share one; torchrun may have started eight on two machines."""
    asked = []
    for name, value in (
        ("RANK", 5),
        ("WORLD_SIZE", 2 * local),
        ("LOCAL_RANK", 3),
        ("LOCAL_WORLD_SIZE", local),
    ):
        monkeypatch.setenv(name, str(value))
    monkeypatch.setattr("tmft.device.choose_device", torch.device)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.cuda, "set_device", asked.append)
    monkeypatch.setattr(dist, "init_process_group", lambda backend, timeout: asked.append(backend))
    monkeypatch.setattr("atexit.register", lambda *_: None)
    own = torch.device("cuda", 3 % gpus)
    assert init_distributed("cuda") == Processes(5, 2 * local, own) and asked == [own, backend]


def test_the_others_enter_when_the_first_one_has_left(monkeypatch):
    """Two threads stand for two processes; the first one stays until the second has had time to enter."""
    meet, order = threading.Barrier(2), []
    monkeypatch.setattr(Processes, "barrier", lambda self: meet.wait(timeout=30))

    def second() -> None:
        with Processes(1, 2, CPU).main_process_first():
            order.append("second")

    thread = threading.Thread(target=second)
    thread.start()
    with Processes(0, 2, CPU).main_process_first():
        thread.join(timeout=0.2)
        order.append("first")
    thread.join()
    assert order == ["first", "second"]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_bar_is_drawn_on_a_terminal_by_the_first_process_if_it_is_wanted(monkeypatch):
    def drawn(file, shown=True):
        with progress_bar(3, "sentences", shown, file=file) as bar:
            bar.update(3)
        return "sentences" in file.getvalue()

    monkeypatch.delenv("RANK", raising=False)
    assert drawn(Terminal()) and not drawn(io.StringIO()) and not drawn(Terminal(), shown=False)
    monkeypatch.setenv("RANK", "1")
    assert not drawn(Terminal())
