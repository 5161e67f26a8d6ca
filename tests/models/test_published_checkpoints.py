"""The table of docs/checkpoints.md: its figures, and small stand-ins of every repository that it names."""

import numpy as np
import pytest
import torch
from conftest import ROOT, SENTENCES, assert_same_embeddings
from published_checkpoints import CHECKPOINTS, counts, table, write_stand_in

from tmft.models.families import FAMILIES, config_from_dict
from tmft.sentence_encoder import SentenceEncoder

WITHOUT_REFERENCE = {"new"}  # model types that run code of their own in other libraries
TEXTS = [*SENTENCES, "Größenwahn, 3 Öfen – naïve café 漢字", "music " * 100, ""]


def test_the_page_has_the_table():
    assert table() in (ROOT / "docs/checkpoints.md").read_text(encoding="utf-8")


def test_the_table_has_every_family_of_sentence_encoders():
    named = {checkpoint.config["model_type"] for checkpoint in CHECKPOINTS.values()}
    others = {"static", "electra", "deberta-v2", "mt5", "umt5", "llama", "qwen2", "gte"}
    assert named == FAMILIES.keys() - others


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_the_parameters_are_those_that_the_card_of_the_checkpoint_states(name):
    checkpoint = CHECKPOINTS[name]
    config = config_from_dict(checkpoint.config)
    rest, layer, total = counts(checkpoint)
    assert rest + config.num_hidden_layers * layer == pytest.approx(total, rel=1e-3)
    dense = [entry for entry in checkpoint.modules if entry != "Normalize"]
    total += sum(entry[0] * entry[1] + entry[2] * entry[1] for entry in dense) / 1e6
    pooler = config.hidden_size * (config.hidden_size + 1) / 1e6
    difference = checkpoint.millions - total
    assert -0.01 * total < difference < 0.01 * total + (pooler if total < 1000 else 0)


@pytest.mark.slow
@pytest.mark.parametrize("name", CHECKPOINTS)
def test_a_stand_in_is_opened_with_all_that_it_says(name, tmp_path):
    from sentence_transformers import SentenceTransformer

    checkpoint = CHECKPOINTS[name]
    write_stand_in(checkpoint, tmp_path)
    model = SentenceEncoder.from_pretrained(tmp_path)
    assert model.pooling == (checkpoint.pooling or "mean")
    in_float32 = {"model_kwargs": {"dtype": torch.float32}}
    kinds = ["Normalize" if entry == "Normalize" else "Dense" for entry in checkpoint.modules]
    assert [type(module).__name__ for module in model.head_modules] == kinds
    assert model.max_length == min(checkpoint.max_length or 96, 96) or checkpoint.max_length is None
    assert model.prompts == {"query": "", "document": ""} | checkpoint.prompts
    assert model.similarity_fn_name == (checkpoint.similarity or "cosine")
    for layer in (None, 1):
        truncated = SentenceEncoder.from_pretrained(tmp_path, layer)
        truncated.save_pretrained(tmp_path / "saved")
        again = SentenceEncoder.from_pretrained(tmp_path / "saved")
        theirs = {"saved": SentenceTransformer(str(tmp_path / "saved"), device="cpu")}
        if layer is None and checkpoint.config["model_type"] not in WITHOUT_REFERENCE:
            theirs["original"] = SentenceTransformer(str(tmp_path), device="cpu", **in_float32)
        for method in ("encode", "encode_query", "encode_document"):
            ours = getattr(truncated, method)(TEXTS)
            assert np.isfinite(ours).all() and np.ptp(ours, axis=0).max() > 1e-3
            assert np.array_equal(getattr(again, method)(TEXTS), ours)
            for opened in theirs.values():
                assert_same_embeddings(getattr(opened, method)(TEXTS), ours, 1e-5)
        assert all(opened.prompts == model.prompts for opened in theirs.values())
