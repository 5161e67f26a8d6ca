"""tmft/speed changes only the speed: with torch's own modules the results are the same, up to rounding."""

import ast
from contextlib import nullcontext
from itertools import pairwise

import numpy as np
import pytest
import torch
from conftest import ROOT, SENTENCES, WITHOUT_DROPOUT, tiny_model, training_task
from torch import Tensor, nn

from tmft.data import Examples
from tmft.loop import Recipe, fit
from tmft.loss import CosineMSE
from tmft.metrics import f1, threshold_metrics
from tmft.sentence_encoder import SentenceEncoder
from tmft.tasks import TASKS
from tmft.training_task import PackedEmbedder


def one_row_each(lengths: np.ndarray, T: int) -> tuple[np.ndarray, np.ndarray]:
    return np.arange(len(lengths)), np.zeros(len(lengths), dtype=np.int64)


def in_order(lengths: np.ndarray, tokens_per_batch: int, packed_length: int, max_scores: int):
    """Batches of two sentences in input order, in rows as long as the longest sentence of all."""
    for start in range(0, len(lengths), 2):
        yield np.arange(start, min(start + 2, len(lengths))), max(lengths)


def made_each_time(device, make, *arguments):
    return make(*arguments)


def every_cut(predicted: np.ndarray, gold: np.ndarray) -> float:
    """Try every threshold halfway between two values and return the highest of the best."""
    values = np.unique(predicted)[::-1]
    cuts = [*((above + below) / 2 for above, below in pairwise(values)), values[-1]]
    return float(max(cuts, key=lambda cut: f1(predicted >= cut, gold)))


def plain_rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return nn.functional.rms_norm(x, weight.shape, weight, eps)


# The attention of every row is written out: no row is long, and no mask is that of a long row.
NO_LONG_ROWS = {"LongRowMask": type(None)}
# module -> {name that it imports from tmft/speed, or has to save time: replacement that takes longer}
REPLACEMENTS = {
    "tmft.encoder": NO_LONG_ROWS | {"make_long_row_mask": lambda *_: None},
    "tmft.bert": {"Dropout": nn.Dropout, **NO_LONG_ROWS, "long_row_attention": None},
    "tmft.deberta": {"Dropout": nn.Dropout, "constant_on": made_each_time},
    "tmft.models.rotary": {"constant_on": made_each_time},
    "tmft.models.t5": {"Dropout": nn.Dropout, "RMSNorm": nn.RMSNorm},
    "tmft.models.t5_decoder": {"Dropout": nn.Dropout},
    "tmft.models.rotary_transformer": {
        "Dropout": nn.Dropout,
        "RMSNorm": nn.RMSNorm,
        "rms_norm": plain_rms_norm,
        **NO_LONG_ROWS,
        "long_row_attention": None,
    },
    "tmft.cli.options": {"limit_threads": lambda: None},
    "tmft.pooling": {"no_autocast": lambda device_type: torch.autocast(device_type, enabled=False)},
    "tmft.packing": {"bin_pack": one_row_each, "copy_to": Tensor.to},
    "tmft.pretraining.masking": {"copy_to": Tensor.to},
    "tmft.metrics": {"best_threshold": every_cut},
    "tmft.optimizers": {
        "OccurringWords": lambda *_: None,  # all word embeddings are trained
        "fast_matmul": nullcontext,
    },
    "tmft.runs.train_run": {"GraphedEmbedder": PackedEmbedder},
    "tmft.sentence_encoder": {
        "copied_behind": iter,
        "fast_encoding": lambda *_: nullcontext(),
        "list_modules": lambda model: [*model.modules()],
        "no_autocast": lambda device_type: torch.autocast(device_type, enabled=False),
        "prepare_for_fork": lambda: None,
    },
    "tmft.models.families": {"no_init_weights": nullcontext},
    "evaluate": {"prepacked_weights": nullcontext},
    "tmft.cli.encode_command": {"prepacked_weights": nullcontext},
    "tmft.serving.server": {"prepacked_weights": nullcontext},
}


def test_every_import_of_speed_has_a_replacement_here():
    for path in [*ROOT.glob("*.py"), *ROOT.glob("tmft/**/*.py")]:
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        nodes = [] if name.startswith("tmft.speed") else ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        for node in nodes:
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tmft.speed"):
                assert {alias.name for alias in node.names} <= REPLACEMENTS[name].keys(), name


TRAIN = Examples((SENTENCES, [*SENTENCES[2:], *SENTENCES[:2]]), [4.5, 2.0, 3.0, 0.5, 1.5])
SHAPES = {
    "bert": {"embedding_size": 24},
    "electra": {},
    "deberta-v2": {"embedding_size": 24, "type_vocab_size": 0, "relative_attention": True,
                   "position_buckets": 8, "norm_rel_ebd": "layer_norm", "share_att_key": True,
                   "pos_att_type": "p2c|c2p", "position_biased_input": False},
    "qwen3": {"num_key_value_heads": 2, "head_dim": 6},
    "gemma3_text": {"num_key_value_heads": 2, "head_dim": 6},
    "t5": {"num_layers": 2, "num_heads": 2, "d_kv": 12, "d_model": 24, "d_ff": 48, "dropout_rate": 0.0},
}  # fmt: skip


def losses_and_embeddings(folder) -> tuple[list[float], np.ndarray]:
    """Fine-tune a checkpoint: the loss of each epoch and a threshold; embeddings of some sentences."""
    model = SentenceEncoder.from_pretrained(folder)
    model.set_token_weights("idf", SENTENCES)
    recipe = Recipe(epochs=2, batch_size=2, lr=1e-3, weight_decay=0.1, precision="fp32")
    task = training_task(TASKS["stsb"], CosineMSE(), TRAIN, TRAIN)
    losses = [epoch.loss for epoch in fit(model, task, recipe, seed=0)]
    for _ in range(2):  # the second call keeps prepacked weights
        embeddings = model.encode([*SENTENCES, "a woman eats", "한국 가 안"])
    cut = threshold_metrics(embeddings[:, 0], np.array([1, 0, 0, 1, 0, 1, 1]))["threshold"]
    return [*losses, cut], embeddings


@pytest.mark.parametrize("model_type", SHAPES)
def test_without_speed_losses_and_embeddings_are_the_same(model_type, tmp_path, monkeypatch):
    config = SHAPES[model_type] | WITHOUT_DROPOUT | {"model_type": model_type}
    tiny_model(untrained=True, **config).save_pretrained(tmp_path)
    monkeypatch.setattr("tmft.speed.matmul.MIN_MULTIPLICATIONS", 0)  # few tokens are enough
    losses, embeddings = losses_and_embeddings(tmp_path)

    for module, replacements in REPLACEMENTS.items():
        for name, replacement in replacements.items():
            monkeypatch.setattr(f"{module}.{name}", replacement)
    without_speed = losses_and_embeddings(tmp_path)
    assert losses == pytest.approx(without_speed[0], rel=1e-4) and losses[1] < losses[0]
    largest = np.abs(embeddings).max()
    np.testing.assert_allclose(without_speed[1], embeddings, rtol=0, atol=1e-5 * largest)
