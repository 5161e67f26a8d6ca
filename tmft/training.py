"""Fine-tuning: the recipe of the paper and the loop, in the order in which it runs."""

import math
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call
from tqdm import tqdm

from tmft.data import Pairs, Task, batches, scale
from tmft.errors import InputError
from tmft.metrics import METRICS
from tmft.rows import pack
from tmft.sentence import SentenceEncoder
from tmft.speed.matmul import fast_matmul
from tmft.speed.occurring_words import OccurringWords

PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
CHECK_EVERY = 20  # steps between two looks at the loss; each look makes a GPU wait


@dataclass(frozen=True)
class Recipe:
    """The paper's hyperparameters. Source: Rep et al. 2024, appendix; their released training script."""

    epochs: int = 10
    batch_size: int = 32  # pairs
    lr: float = 2e-5  # peak, after the warm-up
    weight_decay: float = 0.01  # not on biases and LayerNorm
    warmup: float = 0.1  # share of all steps
    max_grad_norm: float = 1.0
    precision: str = "auto"

    def __post_init__(self):
        """Raises InputError for a value that cannot be, in the words of the command line."""
        for name, low, high in [
            ("epochs", 1, math.inf),
            ("batch_size", 1, math.inf),
            ("lr", 0, math.inf),
            ("weight_decay", 0, math.inf),
            ("warmup", 0, 1),
            ("max_grad_norm", 0, math.inf),
        ]:
            value = getattr(self, name)
            if not (low <= value <= high and math.isfinite(value)):
                bounds = f"{low} to {high}" if high < math.inf else f"{low} or more"
                raise InputError(f"--{name.replace('_', '-')} {value}: choose {bounds}")


@dataclass
class Epoch:
    """What one epoch did; number counts from 1, scores are raw, seconds include the dev set."""

    number: int
    loss: float
    dev: dict[str, float]  # of task.metric and what is reported beside it
    best: bool  # better on dev than every epoch before
    lr: float
    pairs_per_second: float
    seconds: float


def fit(
    model: SentenceEncoder,
    objective: nn.Module,
    train: Pairs,
    dev: Pairs,
    task: Task,
    recipe: Recipe,
    seed: int,
    progress: bool = False,
) -> Iterator[Epoch]:
    """Fine-tune every weight on the train pairs; yield after each epoch; keep the best epoch by dev.

    objective: made by a row of OBJECTIVES; its weights, if any, are trained and kept like the model's.
    While an Epoch is handed out the model holds that epoch's weights, so a caller can save them; after the
    last one it holds those of the best. The order of the pairs comes from `seed`, dropout from torch's
    global generator. Raises InputError if the loss is not finite; the model then holds the best epoch so far.
    """
    device = model.device
    precision = choose_precision(recipe.precision, device)
    autocast = torch.autocast(device.type, PRECISIONS[precision], enabled=precision != "fp32")
    scaler = torch.amp.GradScaler(device.type, enabled=precision == "fp16")  # only fp16 needs a scaled loss

    train_ids = model.tokenize(
        train.sentence1 + train.sentence2
    )  # sentence 1 of pair i at i, sentence 2 at N + i
    dev_ids = model.tokenize(dev.sentence1 + dev.sentence2)
    targets = scale(train.scores, task).to(device)
    learnt = nn.ModuleList([model, objective.to(device)])

    steps_per_epoch = math.ceil(len(train) / recipe.batch_size)
    words = OccurringWords(model.encoder.embeddings.word.weight, train_ids)
    train_ids = words.renumber(train_ids)
    weights = dict(model.named_parameters()) | {"encoder.embeddings.word.weight": words.weight}
    trained = [*weights.values(), *objective.parameters()]
    groups = parameter_groups(trained, recipe.weight_decay)
    optimizer = torch.optim.AdamW(groups, lr=recipe.lr, fused=True)  # one pass over all weights, not a loop
    schedule = linear_schedule(optimizer, recipe.warmup, recipe.epochs * steps_per_epoch)
    generator = torch.Generator().manual_seed(seed)
    best_metric, best_weights = -math.inf, copy_weights(learnt)

    for number in range(1, recipe.epochs + 1):
        start, total_loss = time.perf_counter(), torch.zeros((), device=device)
        model.train()
        bar = tqdm(total=len(train), desc=f"epoch {number}", unit=" pairs", leave=False, disable=not progress)
        for step, batch in enumerate(batches(len(train), recipe.batch_size, generator), start=1):
            pairs = [train_ids[i] for i in batch] + [train_ids[len(train) + i] for i in batch]
            rows = pack(pairs).to(device)
            with autocast, fast_matmul():
                u, v = functional_call(model, weights, (rows,)).chunk(2)  # (S, D) each
                loss = objective(u, v, targets[batch])

            optimizer.zero_grad()
            with fast_matmul():
                scaler.scale(loss).backward()
            scaler.unscale_(optimizer)  # before the clip, which must see the true gradients
            nn.utils.clip_grad_norm_(trained, recipe.max_grad_norm)
            scale_before = scaler.get_scale()
            scaler.step(optimizer)
            scaler.update()
            if scaler.get_scale() >= scale_before:  # a smaller scale says that the step was skipped
                schedule.step()

            total_loss += loss.detach() * len(batch)
            if step % CHECK_EVERY == 0 or step == steps_per_epoch:
                if not torch.isfinite(total_loss):
                    learnt.load_state_dict(best_weights)
                    raise InputError(
                        f"the loss is {total_loss.item()} (epoch {number}, by step {step}): "
                        "the best epoch before it is kept; try a lower --lr, or --precision fp32"
                    )
                bar.set_postfix_str(f"loss {total_loss.item() / (bar.n + len(batch)):.4f}")
            bar.update(len(batch))
        bar.close()
        words.write_back()
        train_seconds = time.perf_counter() - start

        predicted = objective.predict(*model.embed(dev_ids).chunk(2))
        dev_scores = METRICS[task.metric](predicted, dev.scores)
        metric = dev_scores[task.metric]
        best = metric > best_metric or number == 1  # NaN, from embeddings that are all equal, is never better
        if best:
            best_metric, best_weights = -math.inf if math.isnan(metric) else metric, copy_weights(learnt)
        yield Epoch(
            number=number,
            loss=total_loss.item() / len(train),
            dev=dev_scores,
            best=best,
            lr=schedule.get_last_lr()[0],
            pairs_per_second=len(train) / train_seconds,
            seconds=time.perf_counter() - start,
        )
    learnt.load_state_dict(best_weights)
    model.eval()


def choose_device(name: str) -> torch.device:
    """auto -> the GPU if there is one, else the CPU; else what torch calls by that name."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        torch.empty(0, device=name)
        return torch.device(name)
    except (RuntimeError, AssertionError) as error:
        raise InputError(f"--device {name}: {str(error).splitlines()[0]}: use auto or cpu") from None


def choose_precision(precision: str, device: torch.device) -> str:
    """auto -> bf16 on a GPU or CPU that computes in it, else fp32; the others as they are.

    It costs no quality that we could measure, see docs/performance.md.
    """
    if precision != "auto":
        return precision
    if device.type == "cuda":
        has_bf16 = torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        has_bf16 = device.type == "cpu" and torch.cpu.get_capabilities().get("avx512_bf16", False)
    return "bf16" if has_bf16 else "fp32"


def parameter_groups(weights: Iterable[nn.Parameter], weight_decay: float) -> list[dict]:
    """All weights in two groups: matrices with weight decay; biases and LayerNorm, the vectors, without."""
    weights = list(weights)
    return [
        {"params": [weight for weight in weights if weight.ndim > 1], "weight_decay": weight_decay},
        {"params": [weight for weight in weights if weight.ndim == 1], "weight_decay": 0.0},
    ]


def linear_schedule(
    optimizer: torch.optim.Optimizer, warmup: float, steps: int
) -> torch.optim.lr_scheduler.LambdaLR:
    """Learning rate from 0 to its peak over the first `warmup` share of the steps, then to 0 at the last."""
    warmup_steps = int(warmup * steps)

    def factor(step: int) -> float:
        if step < warmup_steps:
            return step / max(1, warmup_steps)
        return max(0.0, (steps - step) / max(1, steps - warmup_steps))

    return torch.optim.lr_scheduler.LambdaLR(optimizer, factor)


def copy_weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: weight.detach().clone() for name, weight in model.state_dict().items()}
