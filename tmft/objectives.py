"""What fine-tuning minimises: of the embeddings u and v of each pair and its target, a loss and a prediction.

An objective is called for its loss; predict gives what the metric reads. One with a head has weights of its
own: they are trained with the encoder and lie beside it in the run folder, in head.safetensors.

Letters in this file: S pairs of a batch, N pairs of a split, D hidden_size, C classes.
"""

from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn

from tmft.data import Task
from tmft.errors import InputError
from tmft.files.weights import open_safetensors, write_file
from tmft.sentence import cosines

HEAD_FILE = "head.safetensors"


class CosineMSE(nn.Module):
    """Mean squared error of the cosine to the target.

    Source: Rep et al. 2024, section 3; Reimers and Gurevych 2019, arXiv:1908.10084.
    """

    def forward(self, u: Tensor, v: Tensor, target: Tensor) -> Tensor:
        """u, v: (S, D) float32; target: (S,) in [0, 1] -> scalar"""
        return F.mse_loss(F.cosine_similarity(u, v), target)

    def predict(self, u: Tensor, v: Tensor) -> np.ndarray:
        return cosines(u, v)


class CosineBCE(nn.Module):
    """Binary cross-entropy with the cosine as the logit, so that probabilities stay in 0.27 to 0.73.

    Source: the released code of Rep et al. 2024, for MRPC.
    """

    def forward(self, u: Tensor, v: Tensor, target: Tensor) -> Tensor:
        """u, v: (S, D) float32; target: (S,) of 0 and 1 -> scalar"""
        return F.binary_cross_entropy_with_logits(F.cosine_similarity(u, v), target.to(u.dtype))

    def predict(self, u: Tensor, v: Tensor) -> np.ndarray:
        """The cosines; the metric finds the threshold."""
        return cosines(u, v)


class Softmax(nn.Module):
    """Cross-entropy of a linear layer over u, v and |u - v|.

    Source: Conneau et al. 2017, arXiv:1705.02364; Reimers and Gurevych 2019, equation of section 3.
    """

    def __init__(self, hidden_size: int, classes: int):
        super().__init__()
        self.head = nn.Linear(3 * hidden_size, classes)

    def logits(self, u: Tensor, v: Tensor) -> Tensor:
        return self.head(torch.cat([u, v, (u - v).abs()], dim=-1))  # (S, 3 D) -> (S, C)

    def forward(self, u: Tensor, v: Tensor, target: Tensor) -> Tensor:
        """u, v: (S, D) float32; target: (S,) int64, numbers of classes -> scalar"""
        return F.cross_entropy(self.logits(u, v), target)

    @torch.inference_mode()
    def predict(self, u: Tensor, v: Tensor) -> np.ndarray:
        """u, v: (N, D) -> the most probable class of each pair, (N,) int64"""
        device = self.head.weight.device
        return self.logits(u.to(device), v.to(device)).argmax(-1).cpu().numpy()


# Each row makes an objective for embeddings of hidden_size numbers and a task.
OBJECTIVES = {
    "cosine_mse": lambda hidden_size, task: CosineMSE(),
    "cosine_bce": lambda hidden_size, task: CosineBCE(),
    "softmax": lambda hidden_size, task: Softmax(hidden_size, len(task.classes)),
}


def save_head(objective: nn.Module, folder: Path) -> None:
    """Write the weights of an objective into a run folder; nothing if it has none."""
    weights = {name: weight.detach().cpu() for name, weight in objective.state_dict().items()}
    if weights:
        write_file(folder / HEAD_FILE, lambda path: save_file(weights, path))


def load_objective(task: Task, hidden_size: int, folder: Path) -> nn.Module:
    """The objective of a task, with the head that the run in folder learnt for it if it has one.

    Raises InputError if the folder has no head, or one of another shape.
    """
    objective = OBJECTIVES[task.objective](hidden_size, task)
    for name, weight in objective.named_parameters():
        path = folder / HEAD_FILE
        if not path.is_file():
            raise InputError(
                f"{folder} has no {HEAD_FILE}, and {task.objective} needs a trained head: "
                "name a run of train.py on this task, at the layer that it trained"
            )
        with open_safetensors(path) as file:
            shape = tuple(file.get_slice(name).get_shape()) if name in file.keys() else None
            if shape != tuple(weight.shape):
                raise InputError(
                    f"{path} has {name} of shape {shape} instead of {tuple(weight.shape)}: "
                    "it belongs to another task or layer"
                )
            weight.data.copy_(file.get_tensor(name))
    return objective
