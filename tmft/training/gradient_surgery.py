"""Callbacks for tasks with conflicting gradients: one logs the cosines of the gradients, one is PCGrad.

Letters: K tasks, W trained weights (scalars) of the encoder, which the tasks share.
"""

from collections import defaultdict
from itertools import combinations
from typing import Any

import torch
from torch import Tensor, nn

from tmft.callbacks import Callback, LoopState
from tmft.training_task import Batch

STEPS_PER_ENTRY = 20  # an entry of the log is the mean cosine of so many steps


class GradientCosines(Callback):
    """Logs the cosine between the gradients of every two tasks in a step, and sums the gradients as usual."""

    def __init__(self):
        self.weights: list[nn.Parameter] = []
        self.gradients: dict[str, Tensor] = {}  # task -> its gradient in this step, (W,)
        self.has_gradient: list[bool] = []  # of each weight: whether any task has reached it so far
        self.cosines: dict[str, list[float]] = defaultdict(list)  # names of two tasks -> step by step

    def on_epoch_begin(self, state: LoopState) -> None:
        """Find the weights that the tasks share: those of the encoder, which are trained."""
        self.weights = [p for p in state.embed.model.parameters() if p.requires_grad]

    def on_substep_end(self, state: LoopState, batch: Batch) -> None:
        """Store the gradient of this batch's task, and clear it before the next task."""
        self.has_gradient = self.has_gradient or [False] * len(self.weights)
        flat = []
        for index, weight in enumerate(self.weights):
            self.has_gradient[index] |= weight.grad is not None
            flat.append((torch.zeros_like(weight) if weight.grad is None else weight.grad).flatten())
            weight.grad = None
        self.gradients[batch.task] = torch.cat(flat)

    def on_pre_optimizer_step(self, state: LoopState) -> None:
        """Log the cosines, and give each weight its part of the combined gradient."""
        for one, other in combinations(self.gradients, 2):
            cosine = torch.cosine_similarity(self.gradients[one], self.gradients[other], dim=0)
            self.cosines[f"{one}, {other}"].append(cosine.item())
        sizes = [weight.numel() for weight in self.weights]
        combined = self.combine(list(self.gradients.values())).split(sizes)
        for weight, part, has_gradient in zip(self.weights, combined, self.has_gradient, strict=True):
            weight.grad = part.view_as(weight) if has_gradient else None
        self.gradients = {}

    def combine(self, gradients: list[Tensor]) -> Tensor:
        """Combine K task gradients, (W,) each, into the one that the optimizer uses, (W,)."""
        return torch.stack(gradients).sum(0)

    def on_epoch_end(self, state: LoopState) -> None:
        """Put the cosines of the epoch into its EpochResult, averaged over STEPS_PER_ENTRY steps each."""
        entries = {
            names: torch.tensor(values).split(STEPS_PER_ENTRY) for names, values in self.cosines.items()
        }
        state.gradient_cosines = {
            names: [round(entry.mean().item(), 4) for entry in parts] for names, parts in entries.items()
        }
        self.cosines.clear()

    def state_dict(self) -> dict[str, Any]:
        return dict(self.cosines)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.cosines.update(state)


class PCGrad(GradientCosines):
    """Projects conflicting task gradients, those with a negative dot product, before it sums them.

    Each gradient is projected onto the normal plane of every original gradient that it conflicts with, one
    after the other, in a random order from torch's global generator.
    Source: Yu et al. 2020, arXiv:2001.06782, algorithm 1.
    """

    def combine(self, gradients: list[Tensor]) -> Tensor:
        projected = []
        for index, gradient in enumerate(gradients):
            for other in torch.randperm(len(gradients)).tolist():
                dot_product = gradient @ gradients[other]
                if other != index and dot_product < 0:
                    direction = gradients[other]
                    gradient = gradient - dot_product / (direction @ direction) * direction
            projected.append(gradient)
        return super().combine(projected)


# Name -> the callback; None changes and logs nothing.
GRADIENT_SURGERY: dict[str, type[GradientCosines] | None] = {
    "none": None,
    "log": GradientCosines,
    "pcgrad": PCGrad,
}
