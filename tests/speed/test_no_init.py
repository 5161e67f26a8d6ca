"""no_init_weights: weights keep their values."""

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
