"""What tmft/speed is for: with torch's own parts in its place the results are the same, up to rounding."""

import ast
from contextlib import nullcontext
from itertools import pairwise

import numpy as np
import pytest
from conftest import ROOT, SENTENCES, only, tiny_model
from torch import nn

from tmft.data import TASKS, Examples
from tmft.losses.cosine import CosineMSE
from tmft.metrics import f1, threshold_metrics
from tmft.sentence_encoder import SentenceEncoder
from tmft.speed.occurring_words import AllWords  # every row of the table is trained
from tmft.training.loop import Recipe, fit


def one_row_each(lengths: np.ndarray, T: int) -> tuple[np.ndarray, np.ndarray]:
    return np.arange(len(lengths)), np.zeros(len(lengths), dtype=np.int64)


def in_order(lengths: list[int], tokens_per_batch: int, row_width: int):
    """Two sentences at a time, as they come, in rows that hold the longest of all."""
    for start in range(0, len(lengths), 2):
        yield list(range(start, min(start + 2, len(lengths)))), max(lengths)


def every_cut(predicted: np.ndarray, gold: np.ndarray) -> float:
    """The definition: of the cuts halfway between two values the highest of the best."""
    values = np.unique(predicted)[::-1]
    cuts = [*((above + below) / 2 for above, below in pairwise(values)), values[-1]]
    return float(max(cuts, key=lambda cut: f1(predicted >= cut, gold)))


# Module -> what it has of tmft/speed, and what stands there without it.
INSTEAD = {
    "tmft.models.bert": {"Dropout": nn.Dropout},
    "tmft.losses.multiple_negatives": {"fast_matmul": nullcontext},
    "tmft.device": {"fast_matmul": nullcontext, "raise_malloc_threshold": lambda: None},
    "tmft.packing": {"bin_pack": one_row_each},
    "tmft.metrics": {"best_threshold": every_cut},
    "tmft.training.loop": {"OccurringWords": AllWords, "AllWords": AllWords},
    "tmft.sentence_encoder": {"length_bucketed_batches": in_order, "fast_encoding": lambda *_: nullcontext()},
    "tmft.models.t5": {"RMSNorm": nn.RMSNorm},
    "tmft.models.registry": {"no_init_weights": nullcontext},
}


def imports_of_speed(source: str) -> set[str]:
    """The names that a module has of tmft.speed."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tmft.speed"):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module == "tmft":
            found |= {"speed" for name in node.names if name.name == "speed"}
        elif isinstance(node, ast.Import):
            found |= {name.name for name in node.names if name.name.startswith("tmft.speed")}
    return found


def test_speed_is_used_in_these_places_and_no_others():
    sources = [*ROOT.glob("*.py"), *(ROOT / "tmft").rglob("*.py"), ROOT / "data/get_data.py"]
    found = {}
    for path in sources:
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        if not name.startswith("tmft.speed"):
            found[name] = imports_of_speed(path.read_text(encoding="utf-8"))
    assert {name: names for name, names in found.items() if names} == {
        name: set(parts) for name, parts in INSTEAD.items()
    }


TRAIN = Examples((SENTENCES, [*SENTENCES[2:], *SENTENCES[:2]]), [4.5, 2.0, 3.0, 0.5, 1.5])
WITHOUT_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
SHAPES = {
    "bert": {"embedding_size": 24},
    "electra": {},
    "deberta-v2": {"embedding_size": 24, "type_vocab_size": 0, "relative_attention": True,
                   "position_buckets": 8, "norm_rel_ebd": "layer_norm", "share_att_key": True,
                   "pos_att_type": "p2c|c2p", "position_biased_input": False},
    "t5": {"num_layers": 2, "num_heads": 2, "d_kv": 12, "d_model": 24, "d_ff": 48, "dropout_rate": 0.0},
}  # fmt: skip


def losses_and_embeddings(folder) -> tuple[list[float], np.ndarray]:
    """A checkpoint is fine-tuned -> the loss of each epoch and a threshold; embeddings of sentences."""
    model = SentenceEncoder.from_pretrained(folder)
    recipe = Recipe(epochs=2, batch_size=2, lr=1e-3, weight_decay=0.1, precision="fp32")
    losses = [
        epoch.loss for epoch in fit(model, only(TASKS["stsb"], CosineMSE(), TRAIN, TRAIN), recipe, seed=0)
    ]
    embeddings = model.encode([*SENTENCES, "a woman eats", "한국 가 안"])
    cut = threshold_metrics(embeddings[:, 0], np.array([1, 0, 0, 1, 0, 1, 1]))["threshold"]
    return [*losses, cut], embeddings


@pytest.mark.parametrize("model_type", SHAPES)
def test_without_it_losses_and_embeddings_are_the_same(model_type, tmp_path, monkeypatch):
    tiny_model(
        untrained=True, model_type=model_type, **SHAPES[model_type], **WITHOUT_DROPOUT
    ).save_pretrained(tmp_path)
    monkeypatch.setattr("tmft.speed.prepacked_weights.ENOUGH", 0)  # tokens, so that the few here are enough
    losses, embeddings = losses_and_embeddings(tmp_path)

    used = set()
    passed_on = [(f"tmft.models.{family}", {"Dropout": nn.Dropout}) for family in ("deberta", "t5")]
    for module, parts in [*INSTEAD.items(), *passed_on]:
        for name, part in parts.items():

            def instead(*arguments, name=name, part=part, **keys):
                used.add(name)
                return part(*arguments, **keys)

            monkeypatch.setattr(f"{module}.{name}", instead)

    without_speed = losses_and_embeddings(tmp_path)
    everything = {name for parts in INSTEAD.values() for name in parts}
    assert used == everything - {"AllWords"} - ({"RMSNorm"} if model_type != "t5" else set())
    assert losses == pytest.approx(without_speed[0], rel=1e-4) and losses[1] < losses[0]
    largest = np.abs(embeddings).max()
    np.testing.assert_allclose(without_speed[1], embeddings, rtol=0, atol=1e-5 * largest)
