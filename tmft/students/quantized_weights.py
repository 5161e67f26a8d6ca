"""Quantization-aware training: a model learns with the weights that the compact format will store."""

from typing import Any

import torch
from torch import Tensor

from tmft.callbacks import Callback, LoopState
from tmft.checkpoints.compact import round_weight, search_scales, storage_dtype
from tmft.sentence_encoder import SentenceEncoder
from tmft.training.checkpointing import check_same_form

SEARCH_EVERY = 100  # steps after which new scales are searched, which takes as long as some three steps


class QuantizedWeights(Callback):
    """Rounds the weights of a model while it is trained, so that an export with this dtype changes nothing.

    Between two steps the model has rounded weights: the forward pass, dev and a saved model have them. The
    optimizer changes the exact ones, by the gradients of the rounded ones (straight-through estimator).
    Weights that are not trained are rounded at the beginning. It comes before Checkpointing in the list of
    callbacks, so that a checkpoint has exact and rounded weights of the same step.
    dtype: "int4" or "int8", see tmft/checkpoints/compact.py.
    Source: Bengio, Léonard and Courville 2013, arXiv:1308.3432; Jacob et al. 2018, arXiv:1712.05877.
    """

    exact: dict[str, Tensor]
    scales: dict[str, Tensor]
    rounded: dict[str, Tensor]

    def __init__(self, model: SentenceEncoder, dtype: str):
        self.model = model
        weights = model.named_parameters()
        self.dtypes = {name: storage_dtype(name, weight, dtype) for name, weight in weights}

    def on_train_begin(self, state: LoopState) -> None:
        with state.weights.occurring_words_only():
            self.exact = {name: weight.detach().clone() for name, weight in self.trained_weights().items()}
            # where the rounded weights are in each step: CUDA graphs need them in the same memory
            self.rounded = {name: torch.empty_like(exact) for name, exact in self.exact.items()}
        for name, weight in self.model.named_parameters():
            weight.data = round_weight(weight.data, self.dtypes[name])

    def trained_weights(self) -> dict[str, torch.nn.Parameter]:
        """Return the weights of the model that are trained, with the occurring words only."""
        return {name: weight for name, weight in self.model.named_parameters() if weight.requires_grad}

    def on_epoch_begin(self, state: LoopState) -> None:
        self.search_scales()
        self.use_rounded()

    def on_pre_optimizer_step(self, state: LoopState) -> None:
        for name, weight in self.trained_weights().items():
            weight.data = self.exact[name]

    def on_step_end(self, state: LoopState) -> None:
        if state.steps.step % SEARCH_EVERY == 0:
            self.search_scales()
        self.use_rounded()

    def on_epoch_end(self, state: LoopState) -> None:
        self.search_scales()
        self.use_rounded()
        if words := state.weights.words:  # the other words stay rounded: their weights do not decay
            words.compact.weight.data[-1] = 1

    def search_scales(self) -> None:
        """Search the scales of all trained weights."""
        self.scales = {
            name: search_scales(exact, dtype)
            for name, exact in self.exact.items()
            if (dtype := self.dtypes[name]) is not None
        }

    def use_rounded(self) -> None:
        """Give the model its rounded weights."""
        for name, weight in self.trained_weights().items():
            rounded = round_weight(self.exact[name], self.dtypes[name], self.scales.get(name))
            weight.data = self.rounded[name].copy_(rounded)

    def state_dict(self) -> dict[str, Any]:
        return {"exact": self.exact, "scales": self.scales}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        check_same_form(state, self.state_dict(), type(self).__name__)
        self.exact, self.scales = state["exact"], state["scales"]
