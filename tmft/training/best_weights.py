"""Keeping the weights of the epoch that was best on dev."""

import math
from typing import Any

from torch import Tensor, nn


class BestWeights:
    """Keeps a copy of a module's weights from the time when its metric was highest.

    Before the first `update`, the copy has the weights that the module had at the start. It is overwritten in
    place: of a large table of word embeddings there are never two copies.
    """

    def __init__(self, module: nn.Module):
        self.module = module
        self.metric: float | None = None
        self.weights: dict[str, Tensor] = {
            name: weight.detach().clone() for name, weight in module.state_dict().items()
        }

    def update(self, metric: float) -> bool:
        """Copy the current weights if the metric is higher than in all calls before; return whether it is.

        NaN, the correlation if all embeddings are equal, counts as lower than every number.
        """
        metric = -math.inf if math.isnan(metric) else metric
        is_best = self.metric is None or metric > self.metric
        if is_best:
            self.metric = metric
            for name, weight in self.module.state_dict().items():
                self.weights[name].copy_(weight)
        return is_best

    def restore(self) -> None:
        """Load the best weights into the module."""
        self.module.load_state_dict(self.weights)

    def state_dict(self) -> dict[str, Any]:
        return {"metric": self.metric, "weights": self.weights}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.metric, self.weights = state["metric"], state["weights"]
        self.restore()
