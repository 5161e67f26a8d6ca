"""The GGUF file: llama.cpp computes the embeddings of the model, and what it cannot compute is refused."""

import sys
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from conftest import SENTENCES, assert_same_embeddings, tiny_model, vocabulary_folder

from tmft.checkpoints.tokenizers import load_tokenizer
from tmft.embedding.modules import Dense, Normalize
from tmft.errors import InputError
from tmft.export.export import FORMATS, export, to_bert
from tmft.export.gguf_export import GGUF_FILE, require_gguf_support, wordpieces
from tmft.sentence_encoder import SentenceEncoder


@pytest.fixture
def llama_cpp():
    for package in ("gguf", "llama_cpp"):
        if find_spec(package) is None:
            pytest.skip(f"{package} is not installed")


def cosines(found, expected) -> np.ndarray:
    return torch.cosine_similarity(torch.as_tensor(found), torch.as_tensor(expected)).numpy()


MODELS = {
    "bert": lambda: tiny_model(model_type="bert"),
    "electra": lambda: tiny_model(embedding_size=24),
    "cls": lambda: set_on(tiny_model(model_type="bert"), pooling="cls"),
    "unit length": lambda: set_on(
        tiny_model(model_type="bert"), head_modules=torch.nn.Sequential(Normalize())
    ),
}


def set_on(model, **settings):
    for name, value in settings.items():
        setattr(model, name, value)
    return model


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("name", MODELS)
def test_llama_cpp_computes_the_same_direction(name, dtype, tmp_path, llama_cpp):
    model = set_on(MODELS[name](), tokenizer=load_tokenizer(vocabulary_folder(do_lower_case=True)))
    found = export(model, tmp_path / "out", "gguf", dtype, sentences=SENTENCES)
    assert cosines(found, model.encode(SENTENCES)).min() > (0.99999 if dtype == "float32" else 0.9999)
    assert {path.name for path in (tmp_path / "out").iterdir()} == {GGUF_FILE, "README.md"}
    assert "from llama_cpp import Llama" in (tmp_path / "out/README.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_llama_cpp_computes_minilm(minilm, tmp_path, llama_cpp):
    model = SentenceEncoder.from_pretrained(minilm)
    texts = [
        *SENTENCES,
        "Déjà vu, ÜBER naïve Ångström!",
        "日本語のテキスト",
        "price: $5.00 (10% off) — ‘text’…",
        "😀 ?",
        "",
    ]
    found = export(model, tmp_path / "out", "gguf", sentences=texts)
    assert cosines(found, model.encode(texts)).min() > 0.9999
    assert_same_embeddings(found, model.encode(texts), 2e-3)


REFUSED = {
    "has no layer": lambda model: setattr(model.encoder, "layers", torch.nn.ModuleList()),
    "pools by max": lambda model: setattr(model, "pooling", "max"),
    "has a default prompt": lambda model: setattr(model, "prompt", "query: "),
    "leaves prompts out": lambda model: setattr(model, "include_prompt", False),
    "keeps the first dimensions": lambda model: setattr(model, "truncate_dim", 4),
    "has a Dense": lambda model: setattr(model, "head_modules", torch.nn.Sequential(Dense(24, 8))),
}


@pytest.mark.parametrize("problem", REFUSED)
def test_what_the_file_cannot_express_is_refused(problem):
    model = tiny_model(model_type="bert")
    REFUSED[problem](model)
    with pytest.raises(InputError, match=f"format gguf: the model {problem}.*: choose format onnx"):
        require_gguf_support(model)


def test_another_activation_is_refused():
    with pytest.raises(InputError, match="has the activation relu"):
        require_gguf_support(tiny_model(model_type="bert", hidden_act="relu"))


def test_narrow_embeddings_are_refused():
    with pytest.raises(
        InputError, match="format gguf: BERT has no linear map from 12 to 24 after the embeddings"
    ):
        FORMATS["gguf"].prepare(tiny_model())
    assert require_gguf_support(to_bert(tiny_model(embedding_size=24)))


NORMALIZER = {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True}
NORMALIZER |= {"lowercase": True, "strip_accents": None}
VOCABULARY = {token: n for n, token in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "##b"])}
TOKENIZER = {"normalizer": NORMALIZER, "model": {"type": "WordPiece", "vocab": VOCABULARY}}
OTHER_TOKENIZERS = {
    "no normalizer": {"normalizer": None},
    "cased": {"normalizer": NORMALIZER | {"lowercase": False}},
    "with accents": {"normalizer": NORMALIZER | {"strip_accents": False}},
    "no WordPiece": {"model": {"type": "Unigram", "vocab": [["a", 0.0]]}},
    "no [MASK]": {"model": {"type": "WordPiece", "vocab": {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3}}},
    "other names": {"model": {"type": "WordPiece", "vocab": {"<s>": 0, "</s>": 1, "a": 2}}},
}


def test_the_tokens_are_in_the_order_of_their_ids():
    assert wordpieces(TOKENIZER) == [*VOCABULARY]
    gap = {"model": {"type": "WordPiece", "vocab": VOCABULARY | {"z": 8}}}
    assert wordpieces(TOKENIZER | gap) == [*VOCABULARY, "[unused-7]", "z"]


@pytest.mark.parametrize("name", OTHER_TOKENIZERS)
def test_another_tokenizer_is_refused(name):
    with pytest.raises(InputError, match="no WordPiece of BERT for text in lower case: choose format onnx"):
        wordpieces(TOKENIZER | OTHER_TOKENIZERS[name])


def test_what_is_missing_is_named_as_it_is_installed(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(InputError, match="needs gguf: pip install gguf llama-cpp-python"):
        export(tiny_model(model_type="bert"), tmp_path / "out", "gguf")
