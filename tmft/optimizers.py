"""What a step changes, and how: the trained weights, optimizers, learning rate and mixed precision."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

from tmft.device import PRECISIONS, choose_precision
from tmft.errors import InputError
from tmft.sentence_encoder import SentenceEncoder
from tmft.speed.matmul import fast_matmul
from tmft.speed.occurring_words import OccurringWords

# Name -> a constructor of the optimizer, which is called with parameter groups and lr=...
# adamw: Loshchilov and Hutter 2019, arXiv:1711.05101. fused=True updates all weights in one pass.
# adafactor: Shazeer and Stern 2018, arXiv:1804.04235, with the settings of T5. The size of a step is lr times
#   the root mean square of the matrix that it changes, so that weights of any scale learn at the same pace.
#   Adam keeps two running averages per element, Adafactor only one per row and one per column of a matrix.
#   eps: other implementations add 1e-30 to the squared gradient. torch adds the square of its eps, and 1e-30
#   squared would be 0 in float32; torch's default is too large for small gradients.
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adamw": partial(torch.optim.AdamW, fused=True),
    "adafactor": partial(torch.optim.Adafactor, beta2_decay=-0.8, eps=(1e-18, 1e-3), d=1.0),
}

# Optimizers that update each element of a weight independently of its other elements.
ELEMENTWISE_OPTIMIZERS = ("adamw",)


class TrainedWeights:
    """The weights of a model and of the heads that its losses have.

    module: model and objectives. parameters: those that are trained, in a block of `occurring_words_only`.
    Raises InputError if weights have 16 bits, in which most steps would be rounded away.
    """

    def __init__(
        self,
        model: SentenceEncoder,
        objectives: Iterable[nn.Module],
        train_token_ids: Iterable[Sequence[int]],
        optimizer: str,
    ):
        if torch.finfo(model.dtype).bits < 32:
            name = str(model.dtype).removeprefix("torch.")
            raise InputError(
                f"the weights of the model are {name}, too coarse for small steps: load it with dtype "
                "float32, and mixed precision computes in bfloat16 all the same"
            )
        self.module = nn.ModuleList([model, *(objective.to(model.device) for objective in objectives)])
        embeddings = model.encoder.embeddings
        is_elementwise = optimizer in ELEMENTWISE_OPTIMIZERS and embeddings.word.weight.requires_grad
        self.words = OccurringWords(embeddings, train_token_ids) if is_elementwise else None
        with self.occurring_words_only():
            self.parameters = [p for p in self.module.parameters() if p.requires_grad]

    def occurring_words_only(self) -> AbstractContextManager[object]:
        """Inside a with block, leave out the word embeddings of tokens that are not in the training text.

        They have no gradient, and AdamW would only shrink them by the weight decay, which is made up for when
        the block ends. Inside it the word embeddings are a smaller Parameter, the same one in every epoch, so
        that AdamW keeps its averages (speed/occurring_words.py).
        """
        return self.words or nullcontext()

    def state_dict(self) -> dict[str, Any]:
        """Return the weights as they are inside the block, and the whole table of word embeddings."""
        return {"module": self.module.state_dict(), "words": self.words.state_dict() if self.words else {}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.module.load_state_dict(state["module"])
        if self.words:
            self.words.load_state_dict(state["words"])


def parameter_groups(parameters: Iterable[nn.Parameter], weight_decay: float) -> list[dict[str, Any]]:
    """Return two parameter groups for the optimizer: matrices, and vectors, which are not decayed."""
    parameters = list(parameters)
    matrices = [parameter for parameter in parameters if parameter.ndim > 1]
    vectors = [parameter for parameter in parameters if parameter.ndim <= 1]
    return [{"params": matrices, "weight_decay": weight_decay}, {"params": vectors, "weight_decay": 0.0}]


def linear_schedule_with_warmup(
    optimizer: torch.optim.Optimizer, warmup_ratio: float, num_steps: int
) -> LambdaLR:
    """Return a schedule: the learning rate rises linearly to that of the optimizer, then falls to 0."""
    warmup_steps = int(warmup_ratio * num_steps)

    def factor(step: int) -> float:
        if step < warmup_steps:
            return step / max(1, warmup_steps)
        return max(0.0, (num_steps - step) / max(1, num_steps - warmup_steps))

    return LambdaLR(optimizer, factor)


def constant_schedule(optimizer: torch.optim.Optimizer, warmup_ratio: float, num_steps: int) -> LambdaLR:
    """Return a schedule that keeps the learning rate of the optimizer in every step, without a warm-up."""
    return LambdaLR(optimizer, lambda step: 1.0)


# Learning rate schedules: functions (optimizer, warmup_ratio, number of steps of the run) -> scheduler.
LR_SCHEDULES: dict[str, Callable[[torch.optim.Optimizer, float, int], LambdaLR]] = {
    "linear": linear_schedule_with_warmup,
    "constant": constant_schedule,
}


class MixedPrecision:
    """Mixed precision training: torch's autocast and GradScaler. Weights stay in float32.

    The exponent range of fp16 is so small that small gradients become 0. With fp16 the loss is therefore
    multiplied by a scale before the backward pass, the gradients are divided by it before they are clipped,
    and a step with an infinite gradient is skipped.
    device: the device of the weights. precision: an entry of PRECISIONS, or "auto".
    Source: Micikevicius et al. 2018, arXiv:1710.03740.
    """

    def __init__(self, device: torch.device, precision: str):
        self.device_type, self.precision = device.type, choose_precision(precision, device)
        self.scaler = torch.amp.GradScaler(device.type, enabled=self.precision == "fp16")

    @contextmanager
    def autocast(self) -> Iterator[None]:
        """Inside a with block, compute in 16 bits what does not need float32; with fp32, compute faster."""
        dtype, enabled = PRECISIONS[self.precision], self.precision != "fp32"
        with torch.autocast(self.device_type, dtype, enabled=enabled), fast_matmul():
            yield

    def backward(self, loss: Tensor) -> None:
        """Run the backward pass of a loss; with fp16, of the scaled loss."""
        with fast_matmul():
            self.scaler.scale(loss).backward()

    def clip_grad_norm_(
        self, optimizer: torch.optim.Optimizer, parameters: Iterable[nn.Parameter], max_norm: float
    ) -> None:
        """Divide the gradients by the scale, then clip their total L2 norm to max_norm (not if it is 0)."""
        self.scaler.unscale_(optimizer)  # first, because the norm must be that of the true gradients
        if max_norm > 0:
            nn.utils.clip_grad_norm_(parameters, max_norm)

    def step(self, optimizer: torch.optim.Optimizer) -> bool:
        """Take an optimizer step; return False if it was skipped because an fp16 gradient is infinite."""
        scale = self.scaler.get_scale()
        self.scaler.step(optimizer)
        self.scaler.update()
        return self.scaler.get_scale() >= scale  # the scale shrinks when a step is skipped
