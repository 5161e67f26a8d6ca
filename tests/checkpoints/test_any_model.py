"""Any model that is saved is the same here, and in sentence-transformers unless its note says otherwise."""

import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import SENTENCES, VOCABULARY, assert_same_embeddings, tiny_model, tiny_static_model
from hypothesis import given, settings
from hypothesis import strategies as st

from tmft.checkpoints.model_card import describe_compatibility
from tmft.embedding.layer_mix import WORD_EMBEDDINGS
from tmft.embedding.modules import ACTIVATIONS, Dense, LayerNorm, Normalize
from tmft.embedding.prompts import NO_PROMPTS
from tmft.embedding.similarity import SIMILARITIES
from tmft.embedding.token_weights import UNWEIGHTED_POOLINGS, TokenWeights
from tmft.pooling import POOLINGS, required_components
from tmft.sentence_encoder import SentenceEncoder

DEBERTA = {"model_type": "deberta-v2", "relative_attention": True, "pos_att_type": "c2p"}
FAMILIES = {
    "bert": {"model_type": "bert"},
    "electra with a projection": {},
    "electra without a projection": {"embedding_size": 24},
    "deberta": DEBERTA | {"embedding_size": 24},
    "roberta": {"model_type": "roberta", "max_position_embeddings": 42, "pad_token_id": 0},
}
PREFIXES = ["", "a dog ", "two men ", "the cat: "]
TEMPLATES = ["so [X] is", "[X.]", "it means [M]: [X]"]  # sentence-transformers has no such prompts
PROMPT_NAMES = ["query", "document", "passage", "sts"]
TEXTS = ["a man", "the cat eats.", "a man plays the guitar", "two dogs in a park", "Is it not?"]
ENCODER_POOLINGS = [name for name in POOLINGS if not required_components(name)]
ZEROS = "a sentence whose words all have weight 0"  # none of TEXTS and SENTENCES is one
ENCODE_METHODS = ("encode", "encode_query", "encode_document")


@st.composite
def models(draw: Callable) -> tuple[SentenceEncoder, list[str]]:
    """Draw a model; with it, what sentence-transformers cannot do of it."""
    is_static = draw(st.integers(0, 4)) == 0
    model = tiny_static_model() if is_static else draw(transformers())
    torch.manual_seed(draw(st.integers(0, 99)))
    width = model.dimensions
    for kind in draw(st.lists(st.sampled_from(["Dense", "LayerNorm", "Normalize"]), max_size=3)):
        if kind == "Dense":
            out = draw(st.integers(1, 30))
            model.head_modules.append(Dense(width, out, draw(st.booleans()), draw(st.sampled_from(LINEAR))))
            width = out
        else:
            model.head_modules.append(LayerNorm(width) if kind == "LayerNorm" else Normalize())
    for weight in model.head_modules.parameters():
        torch.nn.init.normal_(weight)
    texts = st.sampled_from([*PREFIXES, *TEMPLATES])
    model.prompts |= draw(st.dictionaries(st.sampled_from(PROMPT_NAMES), texts, max_size=3))
    model.default_prompt_name = draw(st.sampled_from([None, *model.prompts]))
    model.similarity_fn_name = draw(st.sampled_from(list(SIMILARITIES)))
    model.max_length = draw(st.integers(16, 30))
    model.truncate_dim = draw(st.sampled_from([None, 1, 5, 100]))
    differences = [text for text in model.prompts.values() if text in TEMPLATES]
    if not is_static and not set(model.pooling.split("+")) <= set(UNWEIGHTED_POOLINGS):
        scheme = draw(st.sampled_from([None, "random", "idf", "no-special", "no-prompt"]))
        if scheme == "no-prompt":  # they are of one prompt: with another one, encode refuses
            model.prompts, model.default_prompt_name, differences = dict(NO_PROMPTS), None, []
        if scheme == "random":
            model.token_weights = TokenWeights(torch.rand(len(VOCABULARY)) + 0.1)
        elif scheme is not None:
            model.set_token_weights(scheme, TEXTS)
        if scheme == "no-prompt" or (scheme is not None and model.pooling != "mean"):
            differences.append(scheme)
    differences += ["mix"] * (model.layers is not None)
    return model.eval(), differences


# An activation that is steep or flat would make rounding errors large, or all embeddings equal.
LINEAR = sorted({"Identity", "Tanh", "SiLU", "GELU", "Sigmoid"} & set(ACTIVATIONS))


@st.composite
def transformers(draw: Callable) -> SentenceEncoder:
    """Draw a truncated encoder with any poolings, or with a mix of layers."""
    family = draw(st.sampled_from(list(FAMILIES)))
    model = tiny_model(**FAMILIES[family])
    num_layers = draw(st.integers(1 if family == "deberta" else 0, 4))
    del model.encoder.layers[num_layers:]
    model.pooling = "+".join(draw(st.lists(st.sampled_from(ENCODER_POOLINGS), min_size=1, max_size=3)))
    if draw(st.integers(0, 3)) == 0:
        below = [] if family == "electra with a projection" else [WORD_EMBEDDINGS]
        below += range(num_layers)
        lower = draw(st.lists(st.sampled_from(below), max_size=2, unique=True)) if below else []
        model.layers = (*lower, num_layers) if lower else None
    return model


def all_embeddings(model) -> list[np.ndarray]:
    """The embeddings of queries, of documents and of other sentences."""
    return [getattr(model, method)(SENTENCES) for method in ENCODE_METHODS]


def all_bytes(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


@settings(max_examples=25)
@given(drawn=models(), former=models())
def test_any_model_is_the_same_after_saving(drawn, former):
    """Also where another model was saved before, of which nothing is left."""
    model, differences = drawn
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        former[0].save_pretrained(folder / "saved")
        model.save_pretrained(folder / "saved")
        again = SentenceEncoder.from_pretrained(folder / "saved")
        for ours, before in zip(all_embeddings(again), all_embeddings(model), strict=True):
            np.testing.assert_array_equal(ours, before)
        for name in ("pooling", "layers", "prompts", "default_prompt_name", "similarity_fn_name"):
            assert getattr(again, name) == getattr(model, name), name
        for name in ("truncate_dim", "dimensions", "max_length"):
            assert getattr(again, name) == getattr(model, name), name
        again.save_pretrained(folder / "again")
        saved = all_bytes(folder / "saved")
        for file, content in all_bytes(folder / "again").items():
            assert file == "README.md" or content == saved[file], file
        note = describe_compatibility(model)
        is_static = model.encoder.config.model_type == "static"
        assert ("transformers cannot run" in note) == is_static
        assert note in (folder / "saved/README.md").read_text(encoding="utf-8").replace("\\", "")
        said = [sentence for sentence in note.split(". ") if "sentence-transformers" in sentence]
        assert len([sentence for sentence in said if ZEROS not in sentence]) == len(differences), (
            note,
            differences,
        )


@pytest.mark.slow
@settings(max_examples=40)
@given(drawn=models())
def test_any_model_is_the_same_in_sentence_transformers_unless_it_says_otherwise(drawn):
    from sentence_transformers import SentenceTransformer

    model, differences = drawn
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        reference = SentenceTransformer(folder, device="cpu")
        assert reference.similarity_fn_name == model.similarity_fn_name
        assert reference.get_embedding_dimension() == model.dimensions
        prefixes = {name: text for name, text in model.prompts.items() if text not in TEMPLATES}
        assert reference.prompts == NO_PROMPTS | prefixes
        default = model.default_prompt_name if model.default_prompt_name in prefixes else None
        assert reference.default_prompt_name == default
        if not set(differences) - set(TEMPLATES):
            for name in prefixes:
                ours = model.encode(SENTENCES, prompt_name=name)
                assert_same_embeddings(reference.encode(SENTENCES, prompt_name=name), ours, 1e-5)
        if not differences:
            for theirs, ours in zip(all_embeddings(reference), all_embeddings(model), strict=True):
                assert_same_embeddings(theirs, ours, 1e-5)
