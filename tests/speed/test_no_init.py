"""Weights stay as they are, and the garbage collector is what it was afterwards, whatever happens inside."""

import gc

import pytest
import torch

from tmft.speed.no_init import no_init_weights


def test_nothing_is_drawn():
    weight = torch.zeros(3, 4)
    with no_init_weights():
        assert torch.nn.init.normal_(weight) is weight
        torch.nn.init.uniform_(tensor=weight)
    assert weight.count_nonzero() == 0
    torch.nn.init.uniform_(weight, 1.0, 2.0)
    assert weight.all()


@pytest.mark.parametrize("collects", [True, False])
def test_garbage_is_collected_afterwards_if_it_was_before(collects):
    try:
        gc.enable() if collects else gc.disable()
        with pytest.raises(ZeroDivisionError), no_init_weights():
            assert not gc.isenabled()
            1 / 0  # noqa: B018
        assert gc.isenabled() is collects
    finally:
        gc.enable()
