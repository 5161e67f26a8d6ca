"""no_init_weights: weights keep their values, and afterwards the garbage collector is as before."""

import gc

import pytest
import torch

from tmft.models.families import no_init_weights


def test_initialization_changes_no_weight():
    weight = torch.zeros(3, 4)
    with no_init_weights():
        assert torch.nn.init.normal_(weight) is weight
        torch.nn.init.uniform_(tensor=weight)
    assert weight.count_nonzero() == 0
    torch.nn.init.uniform_(weight, 1.0, 2.0)
    assert weight.all()


@pytest.mark.parametrize("was_enabled", [True, False])
def test_the_garbage_collector_is_restored_after_an_error(was_enabled):
    try:
        gc.enable() if was_enabled else gc.disable()
        with pytest.raises(ZeroDivisionError), no_init_weights():
            assert not gc.isenabled()
            1 / 0  # noqa: B018
        assert gc.isenabled() is was_enabled
    finally:
        gc.enable()
