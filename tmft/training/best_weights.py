"""The weights of the epoch that was best on dev."""

import math

from torch import Tensor, nn


class BestWeights:
    """A copy of a module's weights, replaced whenever a better metric is reported."""

    def __init__(self, module: nn.Module):
        self.module, self.metric = module, None
        self.weights = copy_weights(module)

    def update(self, metric: float) -> bool:
        """Copy the current weights if the metric is higher than all before; return whether it is.

        NaN, which embeddings that are all equal give, is lower than every number.
        """
        metric = -math.inf if math.isnan(metric) else metric
        is_best = self.metric is None or metric > self.metric
        if is_best:
            self.metric, self.weights = metric, copy_weights(self.module)
        return is_best

    def restore(self) -> None:
        """Give the best weights back to the module."""
        self.module.load_state_dict(self.weights)

    def state_dict(self) -> dict:
        return {"metric": self.metric, "weights": self.weights}

    def load_state_dict(self, state: dict) -> None:
        self.metric, self.weights = state["metric"], state["weights"]
        self.restore()


def copy_weights(module: nn.Module) -> dict[str, Tensor]:
    """A copy of all weights by name."""
    return {name: weight.detach().clone() for name, weight in module.state_dict().items()}
