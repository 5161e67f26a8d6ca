"""A model folder in which one thing cannot be used is refused in one line."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import SENTENCES, VOCABULARY, store_weights, tiny_model, tiny_static_model

from tmft.embedding.modules import Dense, LayerNorm, Normalize
from tmft.embedding.token_weights import TokenWeights
from tmft.errors import InputError
from tmft.sentence_encoder import SentenceEncoder

V = len(VOCABULARY)
MODULES, POOLING, SETTINGS = "modules.json", "1_Pooling/config.json", "config_sentence_transformers.json"
LIMIT = "sentence_bert_config.json"


def write(file: str, content: object) -> Callable[[Path], None]:
    """The change that writes a JSON file."""
    return lambda folder: write_now(folder / file, content)


def write_now(path: Path, content: object) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content))


def remove(file: str) -> Callable[[Path], None]:
    return lambda folder: (folder / file).unlink()


def tensors(subfolder: str, dtype=torch.float32, **shapes) -> Callable[[Path], None]:
    """The change that stores other tensors; in their names, an underscore stands for a dot."""
    weights = {name.replace("_", "."): torch.ones(shape, dtype=dtype) for name, shape in shapes.items()}
    return lambda folder: store_weights(folder / subfolder, weights)


def static(dtype=torch.float32, **shapes) -> Callable[[Path], None]:
    """The change that saves a static model with other tensors."""

    def change(folder: Path) -> None:
        tiny_static_model().save_pretrained(folder)
        tensors("", dtype, **shapes)(folder)

    return change


def module(kind: str, path: str, **config) -> Callable[[Path], None]:
    """The change that lists one more module, with its config.json."""

    def change(folder: Path) -> None:
        modules = json.loads((folder / MODULES).read_text())
        modules.append({"path": path, "type": f"sentence_transformers.models.{kind}"})
        write_now(folder / MODULES, modules)
        if path.isidentifier() or path[0].isdigit():
            write_now(folder / path / "config.json", config)

    return change


def listed(*entries: object) -> Callable[[Path], None]:
    return write(MODULES, list(entries))


def link_out_of_the_folder(folder: Path) -> None:
    (folder / "2_Dense").rename(folder.parent / "elsewhere")
    (folder / "2_Dense").symlink_to(folder.parent / "elsewhere")


def width(kind: str, size: int) -> Callable[[Path], None]:
    """The change that saves a model whose second module wants another width."""

    def change(folder: Path) -> None:
        model = tiny_model()
        layer = Dense(size, 8) if kind == "Dense" else LayerNorm(size)
        model.head_modules = torch.nn.Sequential(Normalize(), layer)
        model.save_pretrained(folder)

    return change


def words_of_another_checkpoint(folder: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).unlink()
    words = ["[UNK]", "[CLS]", "[SEP]", *(f"word{n}" for n in range(200))]
    (folder / "vocab.txt").write_text("\n".join(words), encoding="utf-8")


def huge_dense(folder: Path) -> None:
    module("Dense", "4_Dense", in_features=10**6, out_features=10**7)(folder)
    tensors("4_Dense", linear_weight=(8, 24), linear_bias=(8,))(folder)


OTHER = {"in_features": 8, "out_features": 8}
NOT_BELOW = "not in a folder directly below"
# Words of the message -> what is changed in the folder of a model with token weights, Dense and Normalize.
REPLACEABLE = {  # modules after the pooling, which is why the message proposes to name one
    "a 'CNN' after the pooling.* name a pooling, which is then": module("CNN", "4_CNN"),
    "4_Dense.*: use_residual is True": module("Dense", "4_Dense", **OTHER, use_residual=True),
    "4_A.*: module_input_name": module("Dense", "4_A", module_input_name="token_embeddings"),
    "4_B.*: module_output_name": module("Dense", "4_B", module_output_name="token_embeddings"),
    "no weights in .*4_Dense: expected one of model.safe": module("Dense", "4_Dense", **OTHER),
    "4_Dense is not a complete Dense": huge_dense,
    "has a Dense for embeddings of 48 dimensions, but gets 24": width("Dense", 48),
    "has a LayerNorm for embeddings of 25 dimensions, but gets 24": width("LayerNorm", 25),
    "0_WordWeights/model.safetensors": tensors("0_WordWeights", other=(V, 1)),
    "no modules.json in .*model, but it has 3_Normalize: restore": remove(MODULES),
    f"no {POOLING} in .*model, but modules.json names it: restore": remove(POOLING),
    "no weights in .*0_WordWeights": remove("0_WordWeights/model.safetensors"),
}
REFUSED = {
    "no weights in .*model: expected one of model.safetensors, ": remove("model.safetensors"),
    "no config.json in .*model: this is not a checkpoint folder": remove("config.json"),
    "no tokenizer in .*model: expected tokenizer.json": remove("tokenizer.json"),
    "modules.json cannot be read .*: restore the file": listed(None),
    "modules.json cannot be read .type is 1, not a text": listed({"type": 1}),
    "2_Dense is a link out of its folder: refused": link_out_of_the_folder,
    f"a WordWeights is in '../0_W', {NOT_BELOW}": module("WordWeights", "../0_W"),
    f"a Pooling is in '..', {NOT_BELOW}": module("Pooling", ".."),
    f"a Transformer is in '/etc', {NOT_BELOW}": module("Transformer", "/etc"),
    f"a Dense is in '../..', {NOT_BELOW}": module("Dense", "../.."),
    f"a Dense is in '../a', {NOT_BELOW}": module("Dense", "./../a/"),
    f"a Dense is in '/', {NOT_BELOW}": module("Dense", "/"),
    f"a Dense is in 'a.x00', {NOT_BELOW}": module("Dense", "a\0"),
    f"a Dense is in 'a-a-.*, {NOT_BELOW}": module("Dense", "a-" * 150),
    "pooling 'middle': choose one of mean, cls": write("tmft.json", {"pooling": "middle"}),
    "pooling is .*, not a text": write("tmft.json", {"pooling": ["mean"]}),
    "tmft.json cannot be read .its format is 2, this version": write("tmft.json", {"format": 2}),
    "token_weights 'sentences': choose one of": write("tmft.json", {"token_weights": "sentences"}),
    f"ids up to 202, the embedding table has {V} rows": words_of_another_checkpoint,
    "tmft.json cannot be read .a is .*, not a text": write("tmft.json", {"prompts": {"a": {"a": 1}}}),
    "layer 9+.*: write a number": write("tmft.json", {"layer_mix": "9" * 5000}),
    "1_Pooling/config.json cannot be read": write(POOLING, {"pooling_mode": 5}),
    "prompts is 'a', not an object": write(SETTINGS, {"prompts": "a"}),
    r"json cannot be read \(query is 5, not a text\)": write(SETTINGS, {"prompts": {"query": 5}}),
    r"query is \['a'\], not a text": write(SETTINGS, {"prompts": {"query": ["a"]}}),
    r"default_prompt_name is \[\], not a text": write(SETTINGS, {"default_prompt_name": []}),
    "no prompt of the default_prompt_name 'quer' .*: choose one of query, document; did you": write(
        SETTINGS, {"default_prompt_name": "quer"}
    ),
    "similarity_fn_name is 3, not a text": write(SETTINGS, {"similarity_fn_name": 3}),
    "truncate_dim is 0, not 1 or more": write(SETTINGS, {"truncate_dim": 0}),
    "truncate_dim is '8', not a whole number": write(SETTINGS, {"truncate_dim": "8"}),
    "bert_config.json cannot be read .max_seq_length is 1, not 3": write(LIMIT, {"max_seq_length": 1}),
    "max_seq_length is True, not 3": write(LIMIT, {"max_seq_length": True}),
    r"tensors of shapes \[\(\d+,\)\]: a StaticEmbedding has one, embed": static(embedding_weight=(V,)),
    r"tensors of shapes \[\(\d+, 2, 2\)\]: a StaticEmbed": static(embedding_weight=(V, 2, 2)),
    r"tensors of shapes .*, .* a StaticEmbedding has one": static(
        embedding_weight=(V, 8), more_weight=(V, 8)
    ),
    r"tensors of shapes \[\]: a StaticEmbedding has one": static(),
    "unknown tensor other.weight": static(other_weight=(V, 8)),
    "the embedding table has 20 rows": static(embedding_weight=(20, 8)),
    "embedding.weight has dtype torch.int8": static(torch.int8, embedding_weight=(V, 8)),
}


@pytest.fixture
def folder(tmp_path) -> Path:
    """A saved model with token weights, a Dense and a Normalize."""
    model = tiny_model()
    model.token_weights = TokenWeights(torch.ones(V))
    model.head_modules = torch.nn.Sequential(Dense(24, 8), Normalize())
    model.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.parametrize("words", REFUSED)
def test_a_folder_with_one_wrong_thing_is_one_line(words, folder):
    REFUSED[words](folder)
    with pytest.raises(InputError, match=words) as error:
        SentenceEncoder.from_pretrained(folder)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("words", REPLACEABLE)
def test_what_follows_the_encoder_may_be_replaced_by_a_named_pooling(words, folder):
    REPLACEABLE[words](folder)
    with pytest.raises(InputError, match=words) as error:
        SentenceEncoder.from_pretrained(folder)
    assert "\n" not in str(error.value)
    model = SentenceEncoder.from_pretrained(folder, pooling="mean")
    np.testing.assert_array_equal(model.encode(SENTENCES), tiny_model().encode(SENTENCES))
