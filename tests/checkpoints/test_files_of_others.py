"""What a model folder says is done or refused by name: no key, value, file or order is skipped.

Each case changes one thing in a folder that sentence-transformers and tmft read alike. Then tmft gives the
embeddings of sentence-transformers, or an InputError of one line that names what it does not support.
"""

import json
from collections.abc import Callable
from pathlib import Path
from shutil import copytree

import numpy as np
import pytest
import torch
from conftest import SENTENCES, VOCABULARY, store_weights, tiny_model, tiny_static_model

from tmft import InputError, SentenceEncoder
from tmft.checkpoints.model_folder import ModelFolder
from tmft.embedding.modules import Dense, LayerNorm, Normalize
from tmft.embedding.token_weights import TokenWeights

Change = Callable[[Path], object]  # what is changed in a folder
V = len(VOCABULARY)
MODULES, TRANSFORMER = "modules.json", "sentence_bert_config.json"
SETTINGS, POOLING, DENSE = "config_sentence_transformers.json", "1_Pooling/config.json", "2_Dense/config.json"
NORM, TOKENIZER, TMFT = "3_LayerNorm/config.json", "tokenizer_config.json", "tmft.json"
TOKEN_MAP = "special_tokens_map.json"
LONG = " ".join(f"a man plays music {word}" for word in ("cat", "dog", "park", "guitar", "woman") * 3)
TEXTS = [*SENTENCES, LONG]
QUERY = "two dogs in: "


# ------------------------------------------------------------------------------------ what may be changed


def write(name: str, **keys) -> Change:
    """Return a change that sets keys of a JSON file."""

    def change(folder: Path) -> None:
        path = folder / name
        content = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(json.dumps(content | keys))

    return change


def change_json(name: str, make: Callable) -> Change:
    """Return a change that replaces the content of a JSON file by what `make` makes of it."""

    def change(folder: Path) -> None:
        (folder / name).write_text(json.dumps(make(json.loads((folder / name).read_text()))))

    return change


def rename(name: str, other: str) -> Change:
    return lambda folder: (folder / name).rename(folder / other)


def remove(name: str) -> Change:
    return lambda folder: (folder / name).unlink()


def reorder(*numbers: int) -> Change:
    return change_json(MODULES, lambda modules: [modules[number] for number in numbers])


def set_module(number: int, **keys) -> Change:
    return change_json(
        MODULES, lambda modules: [*modules[:number], modules[number] | keys, *modules[number + 1 :]]
    )


def set_class(number: int, name: str) -> Change:
    return set_module(number, type=name)


def add_module(kind: str, path: str) -> Change:
    entry = {"path": path, "type": f"sentence_transformers.models.{kind}"}
    return change_json(MODULES, lambda modules: [*modules, entry])


def tensors(subfolder: str, dtype=torch.float32, **shapes) -> Change:
    """Return a change that stores other tensors; in their names, an underscore stands for a dot."""
    weights = {name.replace("_", "."): torch.ones(shape, dtype=dtype) for name, shape in shapes.items()}
    return lambda folder: store_weights(folder / subfolder, weights)


def other_dense(config: dict, **shapes) -> Change:
    """Return a change that gives the Dense another config.json and other tensors."""

    def change(folder: Path) -> None:
        (folder / DENSE).write_text(json.dumps(config))
        tensors("2_Dense", **shapes)(folder)

    return change


def static(dtype=torch.float32, **shapes) -> Change:
    """Return a change that saves a static model with other tensors."""

    def change(folder: Path) -> None:
        tiny_static_model().save_pretrained(folder)
        tensors("", dtype, **shapes)(folder)

    return change


def word_weights(change_files: Change) -> Change:
    """Return a change that saves a model with token weights, and changes its files."""

    def change(folder: Path) -> None:
        model = tiny_model()
        model.token_weights = TokenWeights(torch.ones(V))
        model.save_pretrained(folder)
        change_files(folder)

    return change


def second_module(module: torch.nn.Module) -> Change:
    """Return a change that saves a model with a Normalize and this module."""

    def change(folder: Path) -> None:
        model = tiny_model()
        model.head_modules = torch.nn.Sequential(Normalize(), module)
        model.save_pretrained(folder)

    return change


def link_out_of_the_folder(folder: Path) -> None:
    (folder / "2_Dense").rename(folder.parent / "elsewhere")
    (folder / "2_Dense").symlink_to(folder.parent / "elsewhere")


def words_of_another_checkpoint(folder: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).unlink()
    words = ["[UNK]", "[CLS]", "[SEP]", *(f"word{n}" for n in range(200))]
    (folder / "vocab.txt").write_text("\n".join(words), encoding="utf-8")


def pooling_in_another_folder(folder: Path) -> None:
    rename("1_Pooling", "5_Pool")(folder)
    set_module(1, path="5_Pool")(folder)
    write("5_Pool/config.json", pooling_mode_cls_token=True, pooling_mode_mean_tokens=False)(folder)


LEFT = {"truncation": {"direction": "Left", "max_length": 30, "strategy": "LongestFirst", "stride": 0}}


@pytest.fixture(scope="module")
def valid_folder(tmp_path_factory) -> Path:
    """A model with a Dense, a LayerNorm and a Normalize, which truncates at 24 tokens."""
    torch.manual_seed(0)
    model = tiny_model()
    model.head_modules.extend([Dense(24, 16, activation="Tanh"), LayerNorm(16), Normalize()])
    model.max_length = 24
    model.save_pretrained(path := tmp_path_factory.mktemp("theirs") / "model")
    return path


@pytest.fixture
def folder(valid_folder, tmp_path) -> Path:
    return Path(copytree(valid_folder, tmp_path / "model"))


# ---------------------------------------------------------------------------------------------- what is done

# What is changed, such that the embeddings are those of sentence-transformers.
DONE = {
    # keys that nobody reads
    "config_sentence_transformers.json, a key": write(SETTINGS, new_option=3),
    "tokenizer_config.json, a key": write(TOKENIZER, new_option=3),
    "config.json, a key": write("config.json", new_option=3),
    "arguments without effect": write(TRANSFORMER, model_args={"attn_implementation": "eager"}),
    "empty arguments": write(TRANSFORMER, config_args={}, unpad_inputs=False),
    # other values
    "the prompt is not pooled": write(POOLING, include_prompt=False),
    "truncation on the left": write(TOKENIZER, truncation_side="left"),
    "truncation on the left, by tokenizer.json": write("tokenizer.json", **LEFT),
    "a Dense that says no activation": change_json(
        DENSE, lambda config: {key: config[key] for key in ("in_features", "out_features", "bias")}
    ),
    # special tokens under every name
    "extra special tokens": write(TOKENIZER, extra_special_tokens=["cat", "dog"]),
    "named special tokens": write(TOKENIZER, extra_special_tokens={"pet_token": "cat"}),
    "additional special tokens": write(TOKENIZER, additional_special_tokens=["cat"]),
    "additional special tokens of an old file": write(TOKEN_MAP, additional_special_tokens=["cat"]),
    # orders and places
    "Normalize before the LayerNorm": reorder(0, 1, 2, 4, 3),
    "an older name of a file": rename(TRANSFORMER, "sentence_roberta_config.json"),
    "a pooling in another folder": pooling_in_another_folder,
}


@pytest.mark.parametrize("name", DONE)
def test_what_the_files_say_is_done_as_in_sentence_transformers_also_after_saving(name, folder, tmp_path):
    sentence_transformers = pytest.importorskip("sentence_transformers")
    DONE[name](folder)
    ours = SentenceEncoder.from_pretrained(folder)
    theirs = sentence_transformers.SentenceTransformer(str(folder), device="cpu")
    ours.save_pretrained(tmp_path / "saved")
    saved = SentenceEncoder.from_pretrained(tmp_path / "saved")
    for prompt in (None, QUERY):
        expected = theirs.encode(TEXTS, prompt=prompt)
        np.testing.assert_allclose(ours.encode(TEXTS, prompt=prompt), expected, atol=2e-6)
        np.testing.assert_allclose(saved.encode(TEXTS, prompt=prompt), expected, atol=2e-6)


@pytest.mark.parametrize(
    ("change", "file"),
    [
        (rename(TRANSFORMER, "sentence_roberta_config.json"), "sentence_roberta_config.json"),
        (pooling_in_another_folder, "5_Pool/config.json"),
    ],
)
def test_a_file_with_another_name_is_one_of_the_files_of_the_model(change, file, folder):
    change(folder)
    assert file in ModelFolder(folder).digests()


# ------------------------------------------------------------------------------------------- what is refused

NOT_BELOW = "not in a folder directly below"
CANNOT_RUN = "modules.json has 'Transformer, .*', which tmft cannot run: it runs a Transformer, a Pooling and"
INCOMPLETE = r"model/2_Dense cannot be read \(.*\): restore the file, or name a pooling"
SIZES = {"in_features": 24, "out_features": 16}
# Words of the message, and what is changed.
REPLACEABLE = [  # modules after the pooling, which is why the message proposes to name one
    (f"{CANNOT_RUN}.* name a pooling, which is then", add_module("CNN", "4_CNN")),
    (CANNOT_RUN, set_class(1, "mine.Pooling")),
    (CANNOT_RUN, set_class(2, "pylate.models.Dense")),
    (CANNOT_RUN, reorder(0, 2)),
    (CANNOT_RUN, reorder(0, 4, 1)),
    (f"{DENSE}.*'new_option' is 3", write(DENSE, new_option=3)),
    (f"{NORM}.*'new_option' is 3", write(NORM, new_option=3)),
    ("2_Dense.*: use_residual is True", write(DENSE, use_residual=True)),
    ("2_Dense.*: module_input_name is", write(DENSE, module_input_name="token_embeddings")),
    ("2_Dense.*: module_output_name is", write(DENSE, module_output_name="token_embeddings")),
    ("no weights in .*2_Dense: expected one of model.safe", remove("2_Dense/model.safetensors")),
    (INCOMPLETE, other_dense({"out_features": 16})),
    (INCOMPLETE, other_dense(SIZES)),
    (INCOMPLETE, other_dense({"in_features": 10**6, "out_features": 10**7}, linear_weight=(16, 24))),
    ("has modules that do not take embeddings of 24 dim.*: name a pooling", second_module(Dense(48, 8))),
    ("has modules that do not take embeddings of 24 dim.*: name a pooling", second_module(LayerNorm(25))),
    ("0_WordWeights/model.safetensors", word_weights(tensors("0_WordWeights", other=(V, 1)))),
    ("no weights in .*0_WordWeights", word_weights(remove("0_WordWeights/model.safetensors"))),
    (f"no {POOLING} in .*model, but modules.json names it: restore", remove(POOLING)),
    ("no modules.json in .*model, but it has 4_Normalize: restore", remove(MODULES)),
]
REFUSED = [
    # files
    ("no weights in .*model: expected one of model.safetensors, ", remove("model.safetensors")),
    ("no config.json in .*model: this is not a checkpoint folder", remove("config.json")),
    ("no tokenizer in .*model: expected tokenizer.json", remove("tokenizer.json")),
    ("tokenizer.json cannot be read", write("tokenizer.json", new_option=3)),
    ("merge the two with merge_and_unload", write("adapter_config.json", peft_type="LORA")),
    ("2_Dense is a link out of its folder: refused", link_out_of_the_folder),
    (f"ids up to 202, the embedding table has {V} rows", words_of_another_checkpoint),
    # modules.json
    ("modules.json.*'new_option' is 3", set_module(2, new_option=3)),
    ("modules.json cannot be read .*: restore the file", change_json(MODULES, lambda modules: [None])),
    ("modules.json cannot be read .type is 1, not a text", set_class(0, 1)),
    ("modules.json has 'mine.Trans.*; use a model that begins with a", set_class(0, "mine.Transformer")),
    (f"a Transformer is in '/etc', {NOT_BELOW}", add_module("Transformer", "/etc")),
    (f"a Dense is in '../a', {NOT_BELOW}", add_module("Dense", "./../a/")),
    # sentence_bert_config.json
    (f"{TRANSFORMER}.*'new_option' is 3", write(TRANSFORMER, new_option=3)),
    ("transformer_task is 'fill-mask'", write(TRANSFORMER, transformer_task="fill-mask")),
    ("module_output_name is 'scores'", write(TRANSFORMER, module_output_name="scores")),
    ("modality_config has None", write(TRANSFORMER, modality_config={"image": {}})),
    ("'num_hidden_layers' is 1", write(TRANSFORMER, config_args={"num_hidden_layers": 1})),
    ("dtype is 'float16'", write(TRANSFORMER, model_kwargs={"dtype": "float16"})),
    ("max_length 1: choose 3 to 40", write(TRANSFORMER, max_seq_length=1)),
    # the config.json of the Pooling
    (f"{POOLING}.*'new_option' is 3", write(POOLING, new_option=3)),
    ("'pooling_mode_attention_tokens'", write(POOLING, pooling_mode_attention_tokens=True)),
    ("the pooling 'attention'", write(POOLING, pooling_mode="attention")),
    ("1_Pooling/config.json cannot be read", write(POOLING, pooling_mode=5)),
    # tmft.json
    (f"{TMFT}.*'new_option' is 3", write(TMFT, new_option=3)),
    ("pooling 'middle': choose one of mean, cls", write(TMFT, pooling="middle")),
    ("pooling is .*, not a text", write(TMFT, pooling=["mean"])),
    ("tmft.json cannot be read .its format is 2, this version", write(TMFT, format=2)),
    ("tmft.json cannot be read .a is .*, not a text", write(TMFT, prompts={"a": {"a": 1}})),
    # config_sentence_transformers.json
    ("model_type is 'SparseEncoder'", write(SETTINGS, model_type="SparseEncoder")),
    ("prompts is 'a', not an object", write(SETTINGS, prompts="a")),
    (r"json cannot be read \(query is \['a'\], not a text\)", write(SETTINGS, prompts={"query": ["a"]})),
    (r"default_prompt_name is \[\], not a text", write(SETTINGS, default_prompt_name=[])),
    ("default_prompt_name 'quer': .*; did you mean query", write(SETTINGS, default_prompt_name="quer")),
    ("similarity_fn_name is 3, not a text", write(SETTINGS, similarity_fn_name=3)),
    ("truncate_dim 0: choose 1 or more", write(SETTINGS, truncate_dim=0)),
    ("truncate_dim is '8', not a whole number", write(SETTINGS, truncate_dim="8")),
    # the weights of a static model
    (r"tensors of shapes \[\(\d+,\)\]: a StaticEmbedding has one, embed", static(embedding_weight=(V,))),
    ("unknown tensor other.weight", static(other_weight=(V, 8))),
    ("the embedding table has 20 rows", static(embedding_weight=(20, 8))),
]


@pytest.mark.parametrize(("words", "change"), [*REFUSED, *REPLACEABLE])
def test_a_folder_with_one_wrong_thing_is_one_line(words, change, folder):
    change(folder)
    with pytest.raises(InputError, match=words) as error:
        SentenceEncoder.from_pretrained(folder)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("change", [change for _, change in REPLACEABLE])
def test_what_follows_the_encoder_may_be_replaced_by_a_named_pooling(change, folder):
    change(folder)
    model = SentenceEncoder.from_pretrained(folder, pooling="mean")
    np.testing.assert_array_equal(model.encode(SENTENCES), tiny_model().encode(SENTENCES))


def test_a_named_pooling_does_not_replace_the_encoder_of_another_package(folder):
    set_class(0, "mine.Transformer")(folder)
    with pytest.raises(InputError, match="has 'mine.Transformer.*, which tmft cannot run"):
        SentenceEncoder.from_pretrained(folder, pooling="mean")


@pytest.mark.parametrize("pooling", ["cls", "max", "mean_sqrt_len_tokens"])
def test_a_pooling_that_cannot_leave_out_a_prompt_says_so_when_there_is_one(pooling):
    model = tiny_model()
    model.pooling = pooling
    before = model.encode(SENTENCES)
    model.include_prompt = False
    assert np.array_equal(model.encode(SENTENCES), before)
    with pytest.raises(InputError, match=f"pooling {pooling}: this model leaves the prompt out"):
        model.encode(SENTENCES, prompt=QUERY)
