"""The weights of the best epoch: which ones they are, and that there is one copy of them."""

import torch
from torch import nn

from tmft.callbacks import BestWeights


def test_the_weights_of_the_highest_metric_are_restored_from_one_copy():
    """The last of nothing but nan is kept; a metric that is not higher changes nothing."""
    module, nan = nn.Linear(3, 2), float("nan")
    best = BestWeights(module)
    addresses = {name: weight.data_ptr() for name, weight in best.weights.items()}
    metrics = [(nan, True), (nan, True), (0.5, True), (0.9, True), (0.9, False), (nan, False), (0.7, False)]
    for epoch, (metric, is_best) in enumerate(metrics):
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.fill_(epoch)
        assert best.update(metric) == is_best
        assert {name: weight.data_ptr() for name, weight in best.weights.items()} == addresses
    best.restore()
    assert all((parameter == 3.0).all() for parameter in module.parameters())


def test_without_an_epoch_the_first_weights_are_restored():
    module = nn.Linear(3, 2)
    best, before = BestWeights(module), [parameter.detach().clone() for parameter in module.parameters()]
    with torch.no_grad():
        module.weight.add_(1.0)
    best.restore()
    assert all(map(torch.equal, module.parameters(), before))
