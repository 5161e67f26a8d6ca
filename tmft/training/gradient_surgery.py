"""Gradients of several tasks that disagree: their cosines, and PCGrad. Callbacks of the training loop.

Shapes: T tasks, W trained weights that they share.
"""

from collections import defaultdict
from itertools import combinations

import torch
from torch import Tensor

from tmft.training.callbacks import Callback
from tmft.training.embed import Batch
from tmft.training.loop_state import LoopContext

STEPS_PER_ENTRY = 20  # steps whose mean cosine is one entry of the log


class GradientCosines(Callback):
    """Logs the cosine of the gradients of each two tasks of a step; the gradients are then summed."""

    def __init__(self):
        self.gradients: dict[str, Tensor] = {}  # task -> its gradient in this step, (W,)
        self.has_gradient: list[bool] = []  # of each weight: whether any task has reached it so far
        self.cosines: dict[str, list[float]] = defaultdict(list)  # names of two tasks -> step by step

    def on_substep_end(self, loop: LoopContext, batch: Batch) -> None:
        """Set the gradient of this task aside, and begin the next one with none."""
        weights = loop.encoder_parameters
        self.has_gradient = self.has_gradient or [False] * len(weights)
        flat = []
        for index, weight in enumerate(weights):
            self.has_gradient[index] |= weight.grad is not None
            flat.append((torch.zeros_like(weight) if weight.grad is None else weight.grad).flatten())
            weight.grad = None
        self.gradients[batch.task] = torch.cat(flat)

    def on_pre_optimizer_step(self, loop: LoopContext) -> None:
        """Log the cosines, and put the combined gradient in place."""
        for one, other in combinations(self.gradients, 2):
            cosine = torch.cosine_similarity(self.gradients[one], self.gradients[other], dim=0)
            self.cosines[f"{one}, {other}"].append(cosine.item())
        weights = loop.encoder_parameters
        combined = self.combine(list(self.gradients.values())).split([weight.numel() for weight in weights])
        for weight, part, has_gradient in zip(weights, combined, self.has_gradient, strict=True):
            weight.grad = part.view_as(weight) if has_gradient else None
        self.gradients = {}

    def combine(self, gradients: list[Tensor]) -> Tensor:
        """T gradients, (W,) each -> (W,)"""
        return torch.stack(gradients).sum(0)

    def on_epoch_end(self, loop: LoopContext) -> None:
        """Give the cosines of this epoch to its result, as means of some steps each."""
        entries = {
            names: torch.tensor(values).split(STEPS_PER_ENTRY) for names, values in self.cosines.items()
        }
        loop.state.gradient_cosines = {
            names: [round(entry.mean().item(), 4) for entry in parts] for names, parts in entries.items()
        }
        self.cosines.clear()

    def state_dict(self) -> dict:
        return dict(self.cosines)

    def load_state_dict(self, state: dict) -> None:
        self.cosines.update(state)


class PCGrad(GradientCosines):
    """If two task gradients have a negative dot product, each is projected onto the normal plane of the other
    before they are summed.

    The other tasks come in a random order, from torch's global generator, with their original gradients.
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


GRADIENT_SURGERY = {"none": None, "log": GradientCosines, "pcgrad": PCGrad}
