"""What a folder of somebody else says is done or refused by name: no key, value, file or order is skipped.

Each case changes one thing in a folder that sentence-transformers and tmft read alike. Then tmft gives the
embeddings of sentence-transformers, or an InputError that names what it does not support.
"""

import json
from shutil import copytree

import numpy as np
import pytest
import torch
from conftest import SENTENCES, tiny_model

from tmft import InputError, SentenceEncoder
from tmft.checkpoints.model_folder import ModelFolder
from tmft.embedding.modules import Dense, LayerNorm, Normalize

MODULES, TRANSFORMER = "modules.json", "sentence_bert_config.json"
SETTINGS, POOLING, DENSE = "config_sentence_transformers.json", "1_Pooling/config.json", "2_Dense/config.json"
NORM, TOKENIZER, TMFT = "3_LayerNorm/config.json", "tokenizer_config.json", "tmft.json"
TOKEN_MAP = "special_tokens_map.json"
LONG = " ".join(f"a man plays music {word}" for word in ("cat", "dog", "park", "guitar", "woman") * 3)
TEXTS = [*SENTENCES, LONG]
QUERY = "two dogs in: "


def write(name, **keys):
    """Return a change that sets keys of a JSON file."""

    def change(folder):
        path = folder / name
        content = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(json.dumps(content | keys))

    return change


def rename(name, other):
    return lambda folder: (folder / name).rename(folder / other)


def reorder(*numbers):
    def change(folder):
        modules = json.loads((folder / MODULES).read_text())
        (folder / MODULES).write_text(json.dumps([modules[number] for number in numbers]))

    return change


def set_module(number, **keys):
    def change(folder):
        modules = json.loads((folder / MODULES).read_text())
        modules[number] |= keys
        (folder / MODULES).write_text(json.dumps(modules))

    return change


def set_class(number, name):
    return set_module(number, type=name)


def truncate_on_the_left(folder):
    """As a tokenizer.json that was saved with truncation."""
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text())
    content["truncation"] = {"direction": "Left", "max_length": 30, "strategy": "LongestFirst", "stride": 0}
    path.write_text(json.dumps(content))


# What is changed -> words of the refusal; None: the embeddings are those of sentence-transformers.
CASES = {
    # an unknown key in each file
    "modules.json, a key": (set_module(2, new_option=3), "'new_option' is 3"),
    "sentence_bert_config.json, a key": (write(TRANSFORMER, new_option=3), "'new_option' is 3"),
    "config_sentence_transformers.json, a key": (write(SETTINGS, new_option=3), None),
    "the config of a Pooling, a key": (write(POOLING, new_option=3), "'new_option' is 3"),
    "the config of a Dense, a key": (write(DENSE, new_option=3), "'new_option' is 3"),
    "the config of a LayerNorm, a key": (write(NORM, new_option=3), "'new_option' is 3"),
    "tokenizer_config.json, a key": (write(TOKENIZER, new_option=3), None),
    "tmft.json, a key": (write(TMFT, new_option=3), "'new_option' is 3"),
    "config.json, a key": (write("config.json", new_option=3), None),
    "tokenizer.json, a key": (write("tokenizer.json", new_option=3), "tokenizer.json cannot be read"),
    "special_tokens_map.json, a key": (write(TOKEN_MAP, new_option=3), None),
    # a known key with a value that is not supported
    "another task": (write(TRANSFORMER, transformer_task="fill-mask"), "transformer_task is 'fill-mask'"),
    "another output": (write(TRANSFORMER, module_output_name="scores"), "module_output_name is 'scores'"),
    "another modality": (write(TRANSFORMER, modality_config={"image": {}}), "modality_config has None"),
    "another tokenizer": (write(TRANSFORMER, tokenizer_name_or_path="x"), "'tokenizer_name_or_path' is 'x'"),
    "other layers": (write(TRANSFORMER, config_args={"num_hidden_layers": 1}), "'num_hidden_layers' is 1"),
    "another dtype": (write(TRANSFORMER, model_kwargs={"dtype": "float16"}), "dtype is 'float16'"),
    "arguments without effect": (write(TRANSFORMER, model_args={"attn_implementation": "eager"}), None),
    "more arguments without effect": (
        write(TRANSFORMER, model_args={"trust_remote_code": True}, tokenizer_args={"use_fast": True}),
        None,
    ),
    "empty arguments": (write(TRANSFORMER, config_args={}, unpad_inputs=False), None),
    "arguments of calls": (
        write(TRANSFORMER, processing_kwargs={"text": {"padding": 8}}),
        "'processing_kwargs'",
    ),
    "an unknown pooling": (
        write(POOLING, pooling_mode_attention_tokens=True),
        "'pooling_mode_attention_tokens'",
    ),
    "an unknown name of a pooling": (write(POOLING, pooling_mode="attention"), "the pooling 'attention'"),
    "a pooling that is a number": (write(POOLING, pooling_mode_max_tokens=2), "pooling_mode_max_tokens is 2"),
    "the prompt is not pooled": (write(POOLING, include_prompt=False), None),
    "a residual": (write(DENSE, use_residual=True), "use_residual is True"),
    "a Dense for tokens": (write(DENSE, module_input_name="token_embeddings"), "module_input_name is"),
    "an activation of others": (
        write(DENSE, activation_function="mine.ReLU"),
        "'mine.ReLU', which is no class",
    ),
    "a model of sparse embeddings": (
        write(SETTINGS, model_type="SparseEncoder"),
        "model_type is 'SparseEncoder'",
    ),
    "truncation on the left": (write(TOKENIZER, truncation_side="left"), None),
    "truncation on the left, by tokenizer.json": (truncate_on_the_left, None),
    "truncation on another side": (write(TOKENIZER, truncation_side="middle"), "truncation_side is 'middle'"),
    # special tokens under every name
    "extra special tokens": (write(TOKENIZER, extra_special_tokens=["cat", "dog"]), None),
    "named special tokens": (write(TOKENIZER, extra_special_tokens={"pet_token": "cat"}), None),
    "additional special tokens": (write(TOKENIZER, additional_special_tokens=["cat"]), None),
    "additional special tokens of an old file": (write(TOKEN_MAP, additional_special_tokens=["cat"]), None),
    "a named token of an old file": (write(TOKEN_MAP, image_token="dog"), None),
    "a special token of its own": (write(TOKENIZER, image_token="cat"), None),
    "special tokens in no list": (
        write(TOKENIZER, extra_special_tokens=5),
        "extra_special_tokens is 5",
    ),
    # modules of others, in other orders
    "a Transformer of another package": (set_class(0, "mine.Transformer"), "begins with a mine.Transformer"),
    "a Pooling of another package": (set_class(1, "mine.Pooling"), "'mine.Pooling', a class of another"),
    "a Dense of another package": (set_class(2, "pylate.models.Dense"), "'pylate.models.Dense', a class of"),
    "a module that tmft lacks": (
        set_class(3, "sentence_transformers.models.LSTM"),
        "a 'LSTM' after the",
    ),
    "no pooling": (reorder(0, 2), "has no Pooling, so that a sentence has an embedding for each token"),
    "the pooling at the end": (reorder(0, 4, 1), "has Transformer, Normalize, Pooling in this order"),
    "Normalize before the LayerNorm": (reorder(0, 1, 2, 4, 3), None),
    "a module twice": (reorder(0, 1, 2, 4, 3, 4), "the name '4' occurs twice"),
    # files
    "an adapter": (write("adapter_config.json", peft_type="LORA"), "merge the two with merge_and_unload"),
    "an older name of a file": (rename(TRANSFORMER, "sentence_roberta_config.json"), None),
    "a file that nobody reads": (write("notes.json", new_option=3), None),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model with a Dense, a LayerNorm and a Normalize, which truncates at 24 tokens."""
    torch.manual_seed(0)
    model = tiny_model()
    model.head_modules.extend([Dense(24, 16, activation="Tanh"), LayerNorm(16), Normalize()])
    model.max_length = 24
    model.save_pretrained(path := tmp_path_factory.mktemp("theirs") / "model")
    return path


@pytest.mark.parametrize("name", CASES)
def test_what_the_files_of_others_say_is_done_or_refused(name, folder, tmp_path):
    sentence_transformers = pytest.importorskip("sentence_transformers")
    change, refusal = CASES[name]
    change(copytree(folder, path := tmp_path / "model"))
    if refusal is not None:
        with pytest.raises(InputError) as error:
            SentenceEncoder.from_pretrained(path)
        assert refusal in str(error.value) and str(path) in str(error.value)
        return
    ours = SentenceEncoder.from_pretrained(path)
    theirs = sentence_transformers.SentenceTransformer(str(path), device="cpu")
    saved = SentenceEncoder.from_pretrained(save(ours, tmp_path / "saved"))
    for prompt in (None, QUERY):
        expected = theirs.encode(TEXTS, prompt=prompt)
        np.testing.assert_allclose(ours.encode(TEXTS, prompt=prompt), expected, atol=2e-6)
        np.testing.assert_allclose(saved.encode(TEXTS, prompt=prompt), expected, atol=2e-6)


def save(model, path):
    model.save_pretrained(path)
    return path


def test_a_pooling_that_is_named_replaces_what_follows_it_but_not_the_encoder_of_another_package(
    folder, tmp_path
):
    set_class(2, "mine.Dense")(copytree(folder, path := tmp_path / "model"))
    assert SentenceEncoder.from_pretrained(path, pooling="mean").dimensions == 24
    set_class(0, "mine.Transformer")(path)
    with pytest.raises(InputError, match="begins with a mine.Transformer"):
        SentenceEncoder.from_pretrained(path, pooling="mean")


@pytest.mark.parametrize("pooling", ["cls", "max", "mean_sqrt_len_tokens"])
def test_a_pooling_that_cannot_leave_out_a_prompt_says_so_when_there_is_one(pooling):
    model = tiny_model()
    model.pooling = pooling
    before = model.encode(SENTENCES)
    model.include_prompt = False
    assert np.array_equal(model.encode(SENTENCES), before)
    with pytest.raises(InputError, match=f"pooling {pooling}: this model leaves the prompt out"):
        model.encode(SENTENCES, prompt=QUERY)


def test_a_file_under_its_older_name_is_one_of_the_files_of_the_model(folder, tmp_path):
    rename(TRANSFORMER, "sentence_roberta_config.json")(copytree(folder, path := tmp_path / "model"))
    assert "sentence_roberta_config.json" in ModelFolder(path).digests()
