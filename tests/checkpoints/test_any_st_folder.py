"""Any folder that sentence-transformers wrote has the same embeddings here, also after we save it."""

import json
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import torch
from conftest import (
    SCRATCH,
    SENTENCES,
    VOCABULARY,
    assert_same_embeddings,
    move_first_module,
    tiny_model,
    vocabulary_folder,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from test_any_model import ENCODE_METHODS, LINEAR
from tokenizers import Tokenizer

from tmft.checkpoints.tokenizers import load_tokenizer
from tmft.embedding.prompts import NO_PROMPTS
from tmft.embedding.similarity import SIMILARITIES
from tmft.errors import InputError
from tmft.sentence_encoder import SentenceEncoder
from tmft.training_free.static_models import random_word_vectors

OLDER_KEYS = {  # of 1_Pooling/config.json before 5.3, in the order in which their vectors were joined
    "cls": "pooling_mode_cls_token",
    "max": "pooling_mode_max_tokens",
    "mean": "pooling_mode_mean_tokens",
    "mean_sqrt_len_tokens": "pooling_mode_mean_sqrt_len_tokens",
    "weightedmean": "pooling_mode_weightedmean_tokens",
    "lasttoken": "pooling_mode_lasttoken",
}
ODD_TEXTS = ["漢字 😀", "[CLS] music [SEP]", "music " * 45, "A MAN", "the the the cat"]
DENSE = st.tuples(st.integers(1, 30), st.booleans(), st.sampled_from(LINEAR))


@st.composite
def model_settings(draw: Callable) -> dict:
    """Draw the content of config_sentence_transformers.json."""
    texts = st.sampled_from(["", "a dog ", "the cat: ", None])
    prompts = draw(st.dictionaries(st.sampled_from(["query", "document", "passage", "corpus", "sts"]), texts))
    others = st.fixed_dictionaries(
        {},
        optional={
            "default_prompt_name": st.sampled_from([None, "query", *prompts]),
            "similarity_fn_name": st.sampled_from([*SIMILARITIES]),
            "truncate_dim": st.sampled_from([1, 5, 24, 100]),
        },
    )
    return draw(st.sampled_from([{}, {"prompts": prompts}])) | draw(others)


RECIPES = st.fixed_dictionaries(
    {
        "static": st.integers(0, 3).map(lambda number: number == 0),
        "word_weights": st.integers(0, 3).map(lambda number: number == 0),
        "poolings": st.lists(st.sampled_from(list(OLDER_KEYS)), min_size=1, max_size=3, unique=True),
        "older_pooling_keys": st.booleans(),
        "later": st.lists(DENSE | st.sampled_from(["LayerNorm", "Normalize"]), max_size=3),
        "below": st.sampled_from([None, "without config.json", "with the config.json of a version"]),
        "lower_case": st.booleans(),
        "limit": st.integers(6, 40),
        "settings": model_settings(),
    }
)


@cache
def cased_tiny_folder() -> Path:
    """A saved ELECTRA whose tokenizer keeps upper case."""
    model = tiny_model()
    model.tokenizer = load_tokenizer(vocabulary_folder(do_lower_case=False))
    model.save_pretrained(folder := Path(tempfile.mkdtemp(dir=SCRATCH)))
    return folder


def build(recipe: dict, folder: Path) -> None:
    """Save a model with the classes of sentence-transformers."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer import modules as kinds

    torch.manual_seed(recipe["limit"])
    if recipe["static"]:
        tokenizer = Tokenizer.from_str(tiny_model().tokenizer.backend.to_str())
        tokenizer.enable_truncation(recipe["limit"])
        modules, width = [kinds.StaticEmbedding(tokenizer, random_word_vectors(len(VOCABULARY), 8))], 8
    else:
        modules = [kinds.Transformer(str(cased_tiny_folder()), do_lower_case=recipe["lower_case"])]
        modules[0].max_seq_length = recipe["limit"]
        if recipe["word_weights"]:
            weights = dict.fromkeys(VOCABULARY, 0.5) | {"the": 0.1, "a": 2.0, "[SEP]": 0.2}
            modules.append(kinds.WordWeights(list(weights), weights))
        modules.append(kinds.Pooling(24, pooling_mode=tuple(recipe["poolings"])))
        width = 24 * len(recipe["poolings"])
    for kind in recipe["later"]:
        if isinstance(kind, str):
            modules.append(kinds.Normalize() if kind == "Normalize" else kinds.LayerNorm(width))
        else:
            out, bias, activation = kind
            modules.append(kinds.Dense(width, out, bias, getattr(torch.nn, activation)()))
            width = out
        for weight in modules[-1].parameters():
            torch.nn.init.normal_(weight)
    SentenceTransformer(modules=modules, device="cpu").save_pretrained(str(folder))
    change(folder / "config_sentence_transformers.json", **recipe["settings"])
    if recipe["below"] is not None:
        move_first_module(folder, "0_First")
        write_older_settings(folder, recipe)
    in_order = recipe["poolings"] == sorted(recipe["poolings"], key=list(OLDER_KEYS).index)
    if recipe["older_pooling_keys"] and in_order and not recipe["static"]:
        modes = {key: name in recipe["poolings"] for name, key in OLDER_KEYS.items()}
        content = {"word_embedding_dimension": 24, "include_prompt": True} | modes
        [path] = folder.glob("*_Pooling/config.json")
        path.write_text(json.dumps(content))


def write_older_settings(folder: Path, recipe: dict) -> None:
    """Write the settings of the first module as they were until version 2.0."""
    if recipe["below"] == "with the config.json of a version":
        (folder / "config.json").write_text('{"__version__": "1.2.0"}')
    if not recipe["static"]:
        older = {"max_seq_length": recipe["limit"], "do_lower_case": recipe["lower_case"]}
        (folder / "0_First/sentence_bert_config.json").write_text(json.dumps(older))
        change(folder / "0_First/tokenizer_config.json", model_max_length=10**30)


def change(path: Path, **keys) -> None:
    content = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    path.write_text(json.dumps(content | keys), encoding="utf-8")


def all_calls(prompts: dict) -> list[tuple[str, dict]]:
    """Every way to encode: (method, options)."""
    options = [{}, {"prompt": "the park "}, {"prompt": ""}, *({"prompt_name": name} for name in prompts)]
    calls = [(method, each) for method in ENCODE_METHODS for each in options]
    calls += [("encode", {"truncate_dim": 3}), ("encode", {"truncate_dim": 9})]
    return [*calls, ("encode", {"normalize_embeddings": True})]


@settings(max_examples=20)
@given(recipe=RECIPES)
def test_any_folder_of_sentence_transformers_is_the_same_here_and_after_saving(recipe):
    from sentence_transformers import SentenceTransformer

    texts = [*SENTENCES, *ODD_TEXTS]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        build(recipe, folder / "theirs")
        reference = SentenceTransformer(str(folder / "theirs"), device="cpu")
        try:
            model = SentenceEncoder.from_pretrained(folder / "theirs")
        except InputError as error:  # word weights multiply hidden states, so that all poolings see them
            assert recipe["word_weights"] and not recipe["static"] and recipe["poolings"] != ["mean"]
            assert "name a pooling" in str(error)
            return
        model.save_pretrained(folder / "ours")
        again = SentenceEncoder.from_pretrained(folder / "ours")
        saved = SentenceTransformer(str(folder / "ours"), device="cpu")
        for method, options in all_calls(reference.prompts):
            expected = getattr(reference, method)(texts, **options)
            ours = getattr(model, method)(texts, **options)
            assert_same_embeddings(ours, expected, 1e-5)
            assert_same_embeddings(getattr(saved, method)(texts, **options), expected, 1e-5)
            np.testing.assert_array_equal(getattr(again, method)(texts, **options), ours)
        u, v = model.encode(SENTENCES), model.encode(SENTENCES[::-1])
        for pair in ((u, v[:3]), (u[0], v)):
            expected = reference.similarity(*pair)
            torch.testing.assert_close(model.similarity(*pair), expected, atol=1e-4, rtol=1e-5)
        assert not (folder / "ours/tmft.json").exists()
        pairwise = reference.similarity_pairwise(u, v)
        torch.testing.assert_close(model.similarity_pairwise(u, v), pairwise, atol=1e-4, rtol=1e-5)
    for other in (reference, saved, again):
        assert dict(NO_PROMPTS) | other.prompts == model.prompts
        assert other.default_prompt_name == model.default_prompt_name
        assert other.similarity_fn_name == model.similarity_fn_name
    assert model.dimensions == reference.get_embedding_dimension() == saved.get_embedding_dimension()
