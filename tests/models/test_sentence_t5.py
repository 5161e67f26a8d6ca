"""The folders of sentence-t5 and gtr: encoder in float16, spiece.model, Dense without bias, Normalize."""

import logging
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import assert_same_embeddings, training_task
from spm_model import made_up_sentences, tiny_t5_spm
from test_t5 import V10

from tmft.data import Examples
from tmft.loop import Recipe, fit
from tmft.loss import CosineMSE
from tmft.sentence_encoder import SentenceEncoder
from tmft.tasks import TASKS

SENTENCES = [*made_up_sentences(6, seed=3), "the baker  mends  ", "…", "a </s> in the text"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """As sentence-transformers saves one."""
    import transformers
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer import modules as kinds

    home, torch_seed = tmp_path_factory.mktemp("t5"), torch.manual_seed(0)
    (home / "spiece.model").write_bytes(tiny_t5_spm())
    tokenizer = transformers.T5Tokenizer.from_pretrained(str(home), extra_ids=100)
    model = transformers.T5EncoderModel(transformers.T5Config(**V10 | {"vocab_size": len(tokenizer) + 28}))
    for name, weight in model.named_parameters():
        torch.nn.init.normal_(weight, mean=float(name.endswith("norm.weight")), std=0.2, generator=torch_seed)
    model.save_pretrained(home)
    tokenizer.save_pretrained(home)
    modules = [
        kinds.Transformer(str(home), max_seq_length=256),
        kinds.Pooling(36, pooling_mode="mean"),
        kinds.Dense(36, 20, bias=False, activation_function=torch.nn.Identity()),
        kinds.Normalize(),
    ]
    SentenceTransformer(modules=modules, device="cpu").half().save(str(home / "theirs"))
    return home / "theirs"


def their_embeddings(folder: Path) -> np.ndarray:
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(folder), device="cpu", model_kwargs={"dtype": torch.float32})
    return model.float().encode(SENTENCES)


@pytest.mark.slow
def test_its_embeddings_are_those_of_sentence_transformers_here_and_back(folder, tmp_path):
    expected = their_embeddings(folder)
    model = SentenceEncoder.from_pretrained(folder)
    assert (model.max_length, model.dimensions) == (256, 20)
    assert_same_embeddings(model.encode(SENTENCES), expected, 1e-5)
    assert np.linalg.norm(expected, axis=1) == pytest.approx(1, abs=1e-4)
    model.save_pretrained(tmp_path)
    assert_same_embeddings(their_embeddings(tmp_path), expected, 1e-5)
    np.testing.assert_array_equal(
        SentenceEncoder.from_pretrained(tmp_path).encode(SENTENCES), model.encode(SENTENCES)
    )


@pytest.mark.slow
def test_a_truncated_model_is_fine_tuned_with_its_dense_and_opens_in_sentence_transformers(
    folder, tmp_path, caplog
):
    with caplog.at_level(logging.WARNING, "tmft"):
        model = SentenceEncoder.from_pretrained(folder, layer=2)
    assert "the Dense after the pooling was trained on layer 3 and now gets layer 2" in caplog.text
    dense = model.head_modules[0].weight.detach().clone()
    pairs = Examples((SENTENCES, [*SENTENCES[1:], SENTENCES[0]]), [float(n % 6) for n in range(9)])
    recipe = Recipe(epochs=2, batch_size=3, lr=1e-3, precision="fp32")
    losses = [
        epoch.loss
        for epoch in fit(model, training_task(TASKS["stsb"], CosineMSE(), pairs, pairs), recipe, seed=0)
    ]
    assert losses[1] < losses[0] and not model.head_modules[0].weight.equal(dense)
    model.save_pretrained(tmp_path)
    assert_same_embeddings(their_embeddings(tmp_path), model.encode(SENTENCES), 1e-5)


@pytest.mark.slow
def test_all_layers_or_another_pooling_give_no_warning(folder, caplog):
    with caplog.at_level(logging.WARNING, "tmft"):
        SentenceEncoder.from_pretrained(folder)
        SentenceEncoder.from_pretrained(folder, layer=2, pooling="mean")
    assert not caplog.records
