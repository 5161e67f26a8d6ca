"""The parts of gpu.py that test the results of a GPU: right and graph.

A check is an error and the largest value that it may have. The expected results are those of a CPU in
float64, up to the rounding of the precision that is tested, so that no CPU has to be trusted in float32. A
check that raises an exception is wrong, and the others still run.
"""

import tempfile
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch
from gpu_speed import minilm, read_pairs
from torch import Tensor

from tmft.checkpoints.tokenizers import load_tokenizer
from tmft.data import Examples
from tmft.datasets.task_lookup import get_task
from tmft.embedding.modules import make_projection
from tmft.errors import describe_error
from tmft.io.distributed import single_process
from tmft.io.formatting import markdown_table
from tmft.loop import fit
from tmft.loss import CosineMSE
from tmft.models.families import config_from_dict, random_encoder
from tmft.optimizers import OPTIMIZERS, MixedPrecision, parameter_groups
from tmft.packing import TokenizedCorpus, pack
from tmft.pooling import POOLINGS, required_components
from tmft.pretraining.masking import Masking
from tmft.pretraining.pretraining_loop import PretrainingRecipe, pretrain
from tmft.pretraining.token_heads import MaskedLM, ReplacedTokenDetection
from tmft.runs.run_config import FineTuningRecipe
from tmft.runs.train_run import assemble_training
from tmft.sentence_encoder import SentenceEncoder
from tmft.speed.cuda_graphs import CapturedPasses
from tmft.tasks import Task
from tmft.training.checkpointing import TrainingCheckpoint
from tmft.training.multitask import make_training_tasks
from tmft.training_task import PackedEmbedder

TWINS = Path(__file__).resolve().parents[2] / "data/twins"
CPU = torch.device("cpu")
# Largest errors: of a hidden state relative to its largest value; of all gradients relative to their norm.
TOLERANCES = {"fp32": (1e-4, 1e-3), "bf16": (5e-2, 5e-2), "fp16": (1e-2, 2e-2)}
LOSS_TOLERANCE = 1e-3  # of a few steps, relative to the loss
HUGE = 1e36  # factor of the loss; finite, but infinite when multiplied by the loss scale of fp16

T5 = {"model_type": "t5", "vocab_size": 8192, "d_model": 64, "num_layers": 4, "num_heads": 4, "d_kv": 16}
T5 |= {"d_ff": 128, "num_decoder_layers": 2}
# Keys of the config.json of an ELECTRA and a DeBERTa with random weights.
ELECTRA = {"model_type": "electra", "embedding_size": 32, "hidden_size": 64, "num_hidden_layers": 4}
ELECTRA |= {"num_attention_heads": 4, "intermediate_size": 128, "vocab_size": 8192, "initializer_range": 0.1}
DEBERTA = ELECTRA | {"model_type": "deberta-v2", "relative_attention": True, "pos_att_type": ["p2c", "c2p"]}
DEBERTA |= {"position_buckets": 32, "share_att_key": True, "norm_rel_ebd": "layer_norm", "type_vocab_size": 0}
DEBERTA |= {"position_biased_input": False}
FAMILIES = {
    "BERT": ELECTRA | {"model_type": "bert", "embedding_size": 64},
    "ELECTRA": ELECTRA,
    "DeBERTa-v3": DEBERTA,
    "DeBERTa-v2 with a convolution": DEBERTA | {"conv_kernel_size": 3, "conv_act": "gelu"},
    "T5": T5,
    "T5, gated": T5 | {"feed_forward_proj": "gated-gelu"},
}
SHORT = FineTuningRecipe(epochs=2, batch_size=8, lr=1e-4, precision="fp32")
FITS = {  # name -> changes of the recipe SHORT, objectives: one for each task
    "default": ({}, ["cosine_mse"]),
    "in mini-batches": ({"mini_batch_size": 3}, ["multiple_negatives_ranking"]),
    "Adafactor": ({"optimizer": "adafactor"}, ["cosine_mse"]),
    "a frozen layer": ({"freeze_layers": 1}, ["cosine_mse"]),
    "a frozen encoder with a head": ({"freeze_layers": -1}, ["concat_head"]),
    "all layers": ({"all_layers": "widening"}, ["cosine_mse"]),
    "Matryoshka dimensions": ({"matryoshka_dims": (16,)}, ["multiple_negatives_ranking"]),
    "three tasks with PCGrad": (
        {"gradient_surgery": "pcgrad"},
        ["cosine_mse", "multiple_negatives_ranking", "concat_head"],
    ),
}

REPEATED = {  # of which the same seed gives the same bytes: as in FITS
    "fit": ({"epochs": 3}, ["cosine_mse"]),
    "fit of two tasks": ({"epochs": 3}, ["cosine_mse", "concat_head"]),
}


class Checks:
    """The checks of a part. rows: of each check its name, its error, the tolerance, and whether it is
    right.
    """

    def __init__(self):
        self.rows: list[dict] = []

    def add(self, name: str, tolerance: float, compute: Callable[[], float]) -> None:
        """Run and print a check. compute: returns its error."""
        try:
            value = float(compute())
            row = {"value": value, "tolerance": tolerance, "right": value <= tolerance}  # NaN is wrong
        except Exception as error:
            row = {"error": f"{type(error).__name__}: {describe_error(error)}", "right": False}
        self.rows.append({"name": name} | row)
        print(check_line(self.rows[-1]), flush=True)

    def result(self, **more) -> dict:
        """Return the result of the part."""
        wrong = [row["name"] for row in self.rows if not row["right"]]
        return {"checks": self.rows, "wrong": wrong} | more


def check_line(row: dict) -> str:
    """Return a line on one check."""
    value = row.get("error") or f"{row['value']:.1e}, at most {row['tolerance']:.0e}"
    return f"{'right' if row['right'] else 'WRONG'}  {row['name']}: {value}"


def check_tables(title: str, result: dict) -> list[tuple[str, str]]:
    """Return the title and the table of all checks of a part, in Markdown."""
    lines = [["check", "error", "tolerance", "right"]]
    for row in result["checks"]:
        value = row["error"] if "error" in row else f"{row['value']:.1e}"
        lines.append([row["name"], value, f"{row.get('tolerance', 0):.0e}", "yes" if row["right"] else "NO"])
    return [(title, markdown_table(lines))]


right_tables = partial(
    check_tables,
    "**Compared with a CPU in float64.** Hidden states: largest difference relative to the largest value; "
    "gradients: norm of the difference relative to their norm; losses: relative difference.",
)
graph_tables = partial(check_tables, "**Steps as CUDA graphs, and repeated runs.**")


def right(bench) -> dict:
    """Check hidden states, gradients, poolings, an overflow in fp16, losses, and repeated runs."""
    device, checks = bench.device, Checks()
    count = 8 if bench.small else 64
    pairs = read_pairs(bench.data, count)
    shapes = dict(list(FAMILIES.items())[1::3]) if bench.small else FAMILIES
    for name, shape in shapes.items():
        check_model(checks, name, make_model(shape), pairs, device)
    full = SentenceEncoder.from_pretrained(minilm(bench.small))
    layers = range(len(full.encoder.layers) + 1)
    for layer in layers[-1:] if bench.small else layers:
        model = SentenceEncoder.from_pretrained(minilm(bench.small), layer)
        check_model(checks, f"MiniLM, {layer} layers", model, pairs, device)

    for name in POOLINGS:
        model = make_model({"decoder": T5, "pooler": FAMILIES["BERT"]}.get(name, ELECTRA), name)
        checks.add(f"embeddings, pooling {name}", 1e-4, lambda m=model: embedding_error(m, pairs, device))
    weighted = make_model(ELECTRA)
    weighted.set_token_weights("idf", pairs.sentences)
    weighted.head_modules = make_projection(weighted.head_modules, weighted.dimensions, 16)
    checks.add("embeddings, idf and a projection", 1e-4, lambda: embedding_error(weighted, pairs, device))

    small = make_model(ELECTRA | {"num_hidden_layers": 2})
    overflow = "fp16: an overflow skips a step, and the next one is taken"
    checks.add(overflow, 0, lambda: count_wrong_after_overflow(small, pairs, device))
    recomputation = "mini-batches: largest difference of an embedding computed again, with dropout"
    checks.add(recomputation, 1e-6, lambda: recomputation_error(small, pairs, device))
    for name, (changes, objectives) in list(FITS.items())[: 2 if bench.small else None]:
        training = Training(small, pairs, device, replace(SHORT, **changes), objectives)
        checks.add(f"losses of fit, {name}", LOSS_TOLERANCE, partial(fit_error, training))
    losses = partial(pretraining_error, "mlm", pairs, device)
    checks.add("pre-training, mlm: losses", LOSS_TOLERANCE, losses)
    for task in ("rtd",) if bench.small else ("mlm", "rtd"):
        resumed = partial(count_differing_pretraining, task, pairs, device)
        checks.add(f"pre-training, {task}: weights that differ in a resumed run", 0, resumed)
    return checks.result()


def graph(bench) -> dict:
    """Check that steps replayed as CUDA graphs give the bits of usual ones, also in repeated runs."""
    device, checks = bench.device, Checks()
    pairs, model = read_pairs(bench.data, 32 if bench.small else 128), make_model(ELECTRA)
    if device.type == "cuda":
        for name, shape in FAMILIES.items():
            usual = partial(count_usual, Training(make_model(shape), pairs, device))
            checks.add(f"{name}: steps that are not replayed", 0, usual)
        waits = "a model that waits for the GPU is trained as usual: weights that differ"
        checks.add(waits, 0, partial(count_differing_if_waiting, Training(model, pairs, device)))
    for precision in ("fp16",) if bench.small else TOLERANCES:
        for name, (changes, objectives) in REPEATED.items():
            recipe = replace(SHORT, precision=precision, lr=1e-3, **changes)
            title = f"{name} in {precision}: weights that differ"
            training = Training(model, pairs, device, recipe, objectives)
            for other, how in {
                "in a second run": {},
                "in a resumed run": {"at": 3},
                "without CUDA graphs": {"cuda_graphs": False},
            }.items():
                checks.add(f"{title} {other}", 0, partial(count_differing, training, **how))
    return checks.result()


# ------------------------------------------------------------------------------- forward and backward pass


def make_model(shape: dict, pooling: str = "mean") -> SentenceEncoder:
    """Return a model with the same random weights in each call, and with the tokenizer of a twin."""
    torch.manual_seed(0)
    config = config_from_dict(shape, required_components(pooling))
    return SentenceEncoder(random_encoder(config), load_tokenizer(TWINS / "mlm"), pooling).eval()


def check_model(
    checks: Checks, name: str, model: SentenceEncoder, pairs: Examples, device: torch.device
) -> None:
    """Check hidden states and gradients in each precision; a T5 has no fp16."""
    states, gradient = forward_backward(deepcopy(model).double(), pairs, CPU, "fp32")
    for precision, (state_tolerance, gradient_tolerance) in TOLERANCES.items():
        if precision == "fp16" and model.encoder.config.model_type == "t5":
            continue
        on_device = cache(partial(forward_backward, model, pairs, device, precision))
        checks.add(
            f"{name}, hidden states, {precision}",
            state_tolerance,
            lambda run=on_device: relative_error(run()[0], states),
        )
        checks.add(
            f"{name}, gradients, {precision}",
            gradient_tolerance,
            lambda run=on_device: (run()[1] - gradient).norm() / gradient.norm(),
        )


def forward_backward(
    model: SentenceEncoder, pairs: Examples, device: torch.device, precision: str
) -> tuple[list[Tensor], Tensor]:
    """Return each hidden state of the tokens, (n, D), and all gradients in one vector, on the CPU."""
    model, amp = deepcopy(model).to(device), MixedPrecision(device, precision)
    packed = pack(model.tokenize(pairs.sentences)).to(device)
    is_token = packed.attention_mask > 0
    with torch.no_grad(), amp.autocast():
        hidden_states = model.encoder.hidden_states(*packed.inputs)
        states = [state[is_token].double().cpu() for state in hidden_states]
    with amp.autocast():
        loss = CosineMSE()(*model(packed).chunk(2), torch.tensor(pairs.labels, device=device) / 5)
    amp.backward(loss)
    gradients = [torch.zeros_like(w) if w.grad is None else w.grad for w in model.parameters()]
    return states, torch.cat([g.flatten().double().cpu() for g in gradients]) / amp.scaler.get_scale()


def relative_error(values: list[Tensor], expected: list[Tensor]) -> float:
    """Return the largest difference of a tensor relative to its largest value; NaN if any value is NaN."""
    errors = [(x - y).abs().max() / y.abs().max() for x, y in zip(values, expected, strict=True)]
    return torch.stack(errors).max().item()


def embedding_error(model: SentenceEncoder, pairs: Examples, device: torch.device) -> float:
    """Return the largest relative difference of the embeddings on the device from those on the CPU."""
    token_ids = model.tokenize(pairs.sentences)
    expected = deepcopy(model).double().embed_token_ids(token_ids)
    return relative_error([deepcopy(model).to(device).embed_token_ids(token_ids)], [expected])


def count_wrong_after_overflow(model: SentenceEncoder, pairs: Examples, device: torch.device) -> int:
    """Return how many of six statements are false after a step with infinite gradients, and the next one."""
    model, amp = deepcopy(model).to(device).train(), MixedPrecision(device, "fp16")
    optimizer = OPTIMIZERS["adamw"](parameter_groups(model.parameters(), 0.01), lr=1e-3)
    packed, target = pack(model.tokenize(pairs.sentences)).to(device), torch.tensor(pairs.labels) / 5

    def step(factor: float) -> tuple[bool, float]:
        optimizer.zero_grad()
        with amp.autocast():
            loss = CosineMSE()(*model(packed).chunk(2), target.to(device))
        amp.backward(loss * factor)
        amp.clip_grad_norm_(optimizer, model.parameters(), 1.0)
        return amp.step(optimizer), amp.scaler.get_scale()

    before = [weight.detach().clone() for weight in model.parameters()]
    scale = amp.scaler.get_scale()
    taken, halved = step(HUGE)
    unchanged = all(map(torch.equal, before, model.parameters()))
    taken_next, kept = step(1.0)
    moved = not all(map(torch.equal, before, model.parameters()))
    finite = all(weight.isfinite().all() for weight in model.parameters())
    facts = (not taken, halved == scale / 2, unchanged, taken_next and kept == halved, moved, finite)
    return len(facts) - sum(facts)


# -------------------------------------------------------------------------------- several steps, resumed runs


def without_dropout(model: torch.nn.Module) -> torch.nn.Module:
    """Set the dropout probabilities of a model to 0, in place; return the model."""
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    return model


@dataclass(frozen=True)
class Training:
    """It fine-tunes a copy of the model for a few steps. objectives: one for each task."""

    model: SentenceEncoder
    pairs: Examples
    device: torch.device
    recipe: FineTuningRecipe = SHORT
    objectives: Sequence[str] = ("cosine_mse",)

    def run(self, checkpoint: TrainingCheckpoint | None = None) -> tuple[list[float], dict[str, Tensor]]:
        """Return the loss of each epoch, and the weights."""
        torch.manual_seed(0)
        model, recipe = deepcopy(self.model).to(self.device), self.recipe
        subtasks = {f"{n} {name}": get_task("stsb", objective=name) for n, name in enumerate(self.objectives)}
        task = next(iter(subtasks.values())) if len(subtasks) == 1 else Task("", subtasks=subtasks)
        data = {name: {"train": self.pairs, "dev": self.pairs} for name in task.tasks_by_name}
        tasks = make_training_tasks(task, model.dimensions, data)
        with checkpoint or nullcontext():
            training_task, embed, callbacks = assemble_training(model, tasks, recipe, checkpoint)
            losses = [epoch.loss for epoch in fit(model, training_task, recipe, 0, embed, callbacks)]
        return losses, model.state_dict()


def fit_error(training: Training) -> float:
    """Return the largest relative difference of the loss of an epoch from that on the CPU."""
    model = without_dropout(deepcopy(training.model))
    losses, _ = replace(training, model=model).run()
    expected, _ = replace(training, model=deepcopy(model).double(), device=CPU).run()
    return np.abs(np.array(losses) / np.array(expected) - 1).max()


def recomputation_error(model: SentenceEncoder, pairs: Examples, device: torch.device) -> float:
    """Return the largest difference between the two embeddings that GradientCache computes of a sentence.

    The gradients are right only if the embeddings are equal, and so is the dropout.
    """
    computed, embed = [], PackedEmbedder.__call__

    def recorded(self, batch):
        computed.append(embed(self, batch))
        return computed[-1]

    recipe = replace(SHORT, epochs=1, batch_size=len(pairs), mini_batch_size=3)
    with patch.object(PackedEmbedder, "__call__", recorded):
        Training(model, pairs, device, recipe, ["multiple_negatives_ranking"]).run()
    half = len(computed) // 2
    assert half > 1
    return max((x - y).abs().max().item() for x, y in zip(computed[:half], computed[half:], strict=True))


def stopping_at(count: int | None):
    """Patch a run so that it stops at the count-th call of should_save; None never stops it."""
    calls, should_save = [0], TrainingCheckpoint.should_save

    def counted(checkpoint: TrainingCheckpoint, step: int = 0) -> bool:
        calls[0] += 1
        checkpoint.stop_requested = calls[0] == count
        return should_save(checkpoint, step)

    return patch.object(TrainingCheckpoint, "should_save", counted)


def stopped_and_resumed(run: Callable[[TrainingCheckpoint], object], at: int, device: torch.device) -> object:
    """Return the result of run(checkpoint) if it is stopped once and resumed."""
    with tempfile.TemporaryDirectory() as folder:
        path, processes = Path(folder) / "state.pt", single_process(device)
        with stopping_at(at):
            try:
                run(TrainingCheckpoint(path, {}, processes))
            except KeyboardInterrupt:
                torch.rand(7, device=device)  # must have no effect
                with stopping_at(None):
                    return run(TrainingCheckpoint(path, {}, processes))
        raise RuntimeError("the run ended before it was stopped")


def count_differing(training: Training, at: int | None = None, cuda_graphs: bool = True) -> int:
    """Return how many weights differ in a second run. at: step at which it is stopped and resumed."""
    second = replace(training, recipe=replace(training.recipe, cuda_graphs=cuda_graphs))
    _, first = training.run()
    _, again = second.run() if at is None else stopped_and_resumed(second.run, at, training.device)
    return count_unequal(first, again)


def count_usual(training: Training) -> int:
    """Return how many steps of a training on one batch are not replayed, besides the first one."""
    replays, forward = [], CapturedPasses.forward

    def counted(self, batch):
        replays.append(len(batch.input_ids))
        return forward(self, batch)

    recipe = replace(training.recipe, epochs=4, batch_size=len(training.pairs))
    with patch.object(CapturedPasses, "forward", counted):
        replace(training, recipe=recipe).run()
    return recipe.epochs - len(replays)  # one replay is the comparison


def count_differing_if_waiting(training: Training) -> int:
    """Return how many weights differ without CUDA graphs, if the model waits for the GPU in each pass.

    Such a pass cannot be captured.
    """
    embed = SentenceEncoder.forward

    def waiting(self, *args, **options):
        embeddings = embed(self, *args, **options)
        embeddings.sum().item()
        return embeddings

    with patch.object(SentenceEncoder, "forward", waiting):
        return count_differing(training, cuda_graphs=False)


def count_unequal(one: dict[str, Tensor], other: dict[str, Tensor]) -> int:
    """Return how many elements of the tensors are not bit-identical."""
    return sum(int((weight != other[name]).sum()) for name, weight in one.items())


# ----------------------------------------------------------------------------------------------- pre-training


def pretrain_briefly(
    task: str,
    pairs: Examples,
    device: torch.device,
    dropout: bool,
    checkpoint: TrainingCheckpoint | None = None,
    dtype: torch.dtype = torch.float32,
) -> tuple[list[float], dict[str, Tensor]]:
    """Do six steps from random weights: return the held-out losses before and after them, and the weights."""
    base = make_model(ELECTRA | {"num_hidden_layers": 2})
    if task == "mlm":
        model = MaskedLM(base.encoder)
    else:
        model = ReplacedTokenDetection(base.encoder.config, 0.5, base.encoder)
    model = (model if dropout else without_dropout(model)).to(device, dtype)
    corpus = TokenizedCorpus.from_sentences(base.tokenize(pairs.sentences))
    masking = Masking.from_tokenizer(base.tokenizer)
    recipe = PretrainingRecipe(
        batch_size=4, gradient_accumulation_steps=2, steps=6, lr=1e-4, save_steps=6, precision="fp32"
    )
    processes = single_process(device)
    with tempfile.TemporaryDirectory() as folder:
        with checkpoint or TrainingCheckpoint(Path(folder) / "state.pt", {}, processes) as checkpoint:
            log = list(pretrain(model, corpus, masking, recipe, 0, processes, checkpoint))
    return [entry.held_out["mlm_loss"] for entry in log], model.state_dict()


def pretraining_error(task: str, pairs: Examples, device: torch.device) -> float:
    """Return the largest relative difference of a held-out loss from that on the CPU."""
    losses = np.array(pretrain_briefly(task, pairs, device, False)[0])
    expected = np.array(pretrain_briefly(task, pairs, CPU, False, dtype=torch.float64)[0])
    return np.abs(losses / expected - 1).max()


def count_differing_pretraining(task: str, pairs: Examples, device: torch.device) -> int:
    """Return how many weights differ if the run is stopped after three steps and resumed."""

    run = partial(pretrain_briefly, task, pairs, device, True)
    return count_unequal(run()[1], stopped_and_resumed(run, 3, device)[1])
