"""Where a folder of sentence-transformers keeps the files of its encoder."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import SENTENCES, VOCABULARY, store_weights, stored_weights, tiny_model
from safetensors.torch import save_file

from tmft.checkpoints.hub import resolve_checkpoint
from tmft.checkpoints.load import load_encoder, read_config
from tmft.checkpoints.st_modules import is_static_model, list_modules, read_config_dict, transformer_folder
from tmft.checkpoints.tokenizers import load_tokenizer
from tmft.embedding.static_embeddings import random_word_vectors, static_encoder, without_special_tokens
from tmft.errors import InputError
from tmft.sentence_encoder import SentenceEncoder

V = len(VOCABULARY)
OF_THE_ENCODER = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
OLD = "sentence_bert_config.json"


def move_in(folder: Path, name: str) -> Path:
    """The files of the encoder go into a module's folder, and modules.json says so."""
    (folder / name).mkdir()
    for file in (*OF_THE_ENCODER, OLD):
        if (folder / file).is_file():
            shutil.move(folder / file, folder / name / file)
    first, *others = json.loads((folder / "modules.json").read_text())
    (folder / "modules.json").write_text(json.dumps([first | {"path": name}, *others]))
    return folder


def static_model() -> SentenceEncoder:
    return SentenceEncoder(
        static_encoder(random_word_vectors(V, 8)), without_special_tokens(tiny_model().tokenizer)
    ).eval()


@pytest.fixture
def transformer(tiny_folder) -> Path:
    return move_in(tiny_folder, "0_Transformer")


@pytest.fixture
def static(tmp_path) -> Path:
    """As sentence-transformers leaves it: no config.json."""
    static_model().save_pretrained(tmp_path / "static")
    for file in ("config.json", "tokenizer_config.json"):
        (tmp_path / "static" / file).unlink()
    return tmp_path / "static"


def say(folder: Path, *modules: tuple[str, str]) -> Path:
    folder.mkdir(exist_ok=True)
    entries = [{"type": f"some.where.{kind}", "path": path} for kind, path in modules]
    (folder / "modules.json").write_text(json.dumps(entries))
    return folder


# ------------------------------------------------------------------------------- list_modules


def test_modules_are_listed_in_their_order(tmp_path):
    modules = [("Transformer", ""), ("WordWeights", "0_W"), ("Pooling", "1_Pooling"), ("Dense", "2_Dense")]
    assert list_modules(say(tmp_path, *modules)) == modules


def test_a_type_without_a_package_is_its_own_name(tmp_path):
    (tmp_path / "modules.json").write_text('[{"type": "StaticEmbedding", "path": ""}]')
    assert list_modules(tmp_path) == [("StaticEmbedding", "")]


def test_a_folder_without_modules_json_has_no_modules(tmp_path):
    assert list_modules(tmp_path) == []


# ------------------------------------------------------------------------ transformer_folder


def test_the_transformer_folder_of_a_checkpoint_is_the_folder_itself(tiny_folder, tmp_path):
    assert transformer_folder(tiny_folder) == tiny_folder
    assert transformer_folder(say(tmp_path / "a", ("Transformer", ""))) == tmp_path / "a"
    assert (
        transformer_folder(say(tmp_path / "b", ("StaticEmbedding", "."))) == tmp_path / "b"
    )  # as model2vec says it


@pytest.mark.parametrize(("kind", "path"), [("Transformer", "0_Transformer"), ("StaticEmbedding", "0_S")])
def test_the_transformer_folder_is_that_of_a_first_module_below(kind, path, tmp_path):
    assert transformer_folder(say(tmp_path, (kind, path), ("Pooling", "1_Pooling"))) == tmp_path / path


OUTSIDE = ["../elsewhere", "..", "a/b", "/etc", "../..", "./a", "a/", "a\0", "a" * 300]


@pytest.mark.parametrize("path", OUTSIDE)
@pytest.mark.parametrize("kind", ["Transformer", "Pooling", "Dense", "WordWeights", "StaticEmbedding"])
def test_a_module_outside_of_the_folder_is_refused(kind, path, tmp_path):
    with pytest.raises(InputError, match="modules.json has a .*expected a folder directly below"):
        list_modules(say(tmp_path / "a", ("Transformer", ""), (kind, path)))


def test_a_module_that_is_a_link_out_of_the_folder_is_refused(tmp_path):
    say(tmp_path / "a", ("Transformer", ""), ("Dense", "2_Dense"))
    (tmp_path / "b").mkdir()
    (tmp_path / "a/2_Dense").symlink_to(tmp_path / "b")
    with pytest.raises(InputError, match="2_Dense is a link out of its folder: refused"):
        list_modules(tmp_path / "a")


@pytest.mark.parametrize(
    ("listed", "message"),
    [
        ([None], "modules.json lists None: expected objects"),
        ([{"type": 1}], "modules.json has type 1: expected a text"),
        ([{"path": "\ud800"}], "modules.json has path .*: expected a text"),
    ],
)
def test_an_entry_that_is_no_module_is_one_line(listed, message, tmp_path):
    (tmp_path / "modules.json").write_text(json.dumps(listed))
    with pytest.raises(InputError, match=message):
        list_modules(tmp_path)


@pytest.mark.parametrize("kind", ["Pooling", "Dense", "CNN"])
def test_only_the_folder_of_an_encoder_is_a_transformer_folder(kind, tmp_path):
    assert transformer_folder(say(tmp_path, (kind, "0_Other"), ("Transformer", "1_Transformer"))) == tmp_path


def test_weights_in_the_root_win_over_modules_json(tiny_folder):
    say(tiny_folder, ("Transformer", "0_Transformer"))
    assert transformer_folder(tiny_folder) == tiny_folder


def test_a_config_with_only_a_version_is_no_checkpoint(transformer):
    """sentence-transformers before 2.0 wrote such a one beside 0_Transformer."""
    (transformer / "config.json").write_text('{"__version__": "1.2.0"}')
    assert transformer_folder(transformer) == transformer / "0_Transformer"
    assert resolve_checkpoint(transformer) == transformer
    assert np.array_equal(
        SentenceEncoder.from_pretrained(transformer).encode(SENTENCES), tiny_model().encode(SENTENCES)
    )


# ------------------------------------------------------------------------------- 0_Transformer


def test_a_transformer_in_a_folder_of_its_own_is_the_same(transformer):
    assert resolve_checkpoint(transformer) == transformer
    expected = tiny_model().encode(SENTENCES)
    assert np.array_equal(SentenceEncoder.from_pretrained(transformer).encode(SENTENCES), expected)
    assert not is_static_model(transformer)


@pytest.mark.parametrize("layer", [0, 2])
def test_a_transformer_below_can_be_truncated(transformer, layer):
    assert len(load_encoder(transformer, layer).layers) == layer


@pytest.mark.parametrize("file", ["config.json", "model.safetensors"])
def test_a_missing_file_of_a_transformer_below_is_one_line(transformer, file):
    (transformer / "0_Transformer" / file).unlink()
    with pytest.raises(InputError, match=f"no (config.json|weights) in {transformer}"):
        resolve_checkpoint(transformer)


def test_a_missing_tokenizer_of_a_transformer_below_is_one_line(transformer):
    (transformer / "0_Transformer/tokenizer.json").unlink()
    with pytest.raises(InputError, match="no tokenizer in .*0_Transformer"):
        SentenceEncoder.from_pretrained(transformer)


@pytest.mark.parametrize("where", ["", "0_Transformer"])
def test_limit_and_lower_case_are_read_where_the_transformer_is(transformer, where):
    (transformer / "0_Transformer" / OLD).unlink(missing_ok=True)
    (transformer / "0_Transformer/tokenizer_config.json").unlink()
    (transformer / where / OLD).write_text('{"max_seq_length": 7, "do_lower_case": true}')
    assert SentenceEncoder.from_pretrained(transformer).max_length == 7
    assert SentenceEncoder.from_pretrained(transformer).tokenize(["A MAN"]) == tiny_model().tokenize(
        ["a man"]
    )


def test_a_transformer_below_is_saved_in_the_root(transformer, tmp_path):
    SentenceEncoder.from_pretrained(transformer).save_pretrained(tmp_path / "ours")
    assert transformer_folder(tmp_path / "ours") == tmp_path / "ours"
    assert np.array_equal(
        SentenceEncoder.from_pretrained(tmp_path / "ours").encode(SENTENCES), tiny_model().encode(SENTENCES)
    )


def test_a_transformer_below_that_is_saved_over_itself_is_in_the_root(transformer):
    model = SentenceEncoder.from_pretrained(transformer, layer=2)
    model.save_pretrained(transformer)
    assert transformer_folder(transformer) == transformer
    assert np.array_equal(
        SentenceEncoder.from_pretrained(transformer).encode(SENTENCES), model.encode(SENTENCES)
    )


# ------------------------------------------------------------------------------- static


@pytest.mark.parametrize("place", ["", "0_StaticEmbedding"])
def test_a_static_model_is_loaded_from_the_root_or_from_below(static, place):
    if place:
        move_in(static, place)
    assert (
        is_static_model(static)
        and transformer_folder(static) == static / place
        and resolve_checkpoint(static) == static
    )
    model = SentenceEncoder.from_pretrained(static)
    assert not model.tokenizer.add_special_tokens
    assert np.array_equal(model.encode(SENTENCES), static_model().encode(SENTENCES))


def test_the_config_of_a_static_model_is_its_size(static):
    assert read_config_dict(static) == {"model_type": "static", "vocab_size": V, "hidden_size": 8}
    assert read_config(static).num_hidden_layers == 0


def test_the_config_of_other_models_is_their_config_json(tiny_folder):
    assert read_config_dict(tiny_folder) == json.loads((tiny_folder / "config.json").read_text())


@pytest.mark.parametrize(
    ("modules", "said"),
    [
        ([], False),
        ([("StaticEmbedding", "")], True),
        ([("StaticEmbedding", "0_S"), ("Normalize", "1_N")], True),
        ([("Transformer", ""), ("Pooling", "1_Pooling")], False),
        ([("Transformer", ""), ("StaticEmbedding", "1_S")], False),
    ],
)
def test_a_model_is_static_if_its_first_module_is_a_static_embedding(modules, said, tmp_path):
    assert is_static_model(say(tmp_path, *modules)) is said


def test_a_static_table_without_weights_is_one_line_even_where_none_are_read(static):
    (static / "model.safetensors").unlink()
    with pytest.raises(InputError, match="no weights in .*static: expected one of model.safetensors, "):
        resolve_checkpoint(static, weights=False)


@pytest.mark.parametrize(
    "weights",
    [
        {"embedding.weight": torch.ones(V)},
        {"embedding.weight": torch.ones(V, 2, 2)},
        {"other.weight": torch.ones(V, 8)},
        {"embedding.weight": torch.ones(V, 8, dtype=torch.int8)},
        {"embedding.weight": torch.ones(V, 8), "more.weight": torch.ones(1)},
        {},
    ],
    ids=["flat", "deep", "another name", "numbers", "more", "none"],
)
def test_a_file_that_is_no_table_is_one_line(weights, static):
    save_file(weights, static / "model.safetensors")
    with pytest.raises(InputError) as error:
        SentenceEncoder.from_pretrained(static)
    assert "\n" not in str(error.value)


def test_a_table_that_is_shorter_than_the_vocabulary_is_one_line(static):
    store_weights(static, {"embedding.weight": stored_weights(static)["embedding.weight"][:20].clone()})
    with pytest.raises(InputError, match="the embedding table has 20 rows"):
        SentenceEncoder.from_pretrained(static)


def test_a_table_in_half_precision_becomes_float32(static):
    store_weights(static, {"embedding.weight": stored_weights(static)["embedding.weight"].half()})
    assert SentenceEncoder.from_pretrained(static).encoder.embeddings.word.weight.dtype == torch.float32


def test_a_table_of_model2vec_is_opened(static):
    """Whose tensor is called embeddings; sentence-transformers opens it as a StaticEmbedding, too."""
    say(static, ("StaticEmbedding", "."), ("Normalize", "1_Normalize"))
    store_weights(static, {"embeddings": stored_weights(static)["embedding.weight"]})
    plain = static_model().encode(SENTENCES)
    expected = plain / np.linalg.norm(plain, axis=1, keepdims=True)
    np.testing.assert_allclose(SentenceEncoder.from_pretrained(static).encode(SENTENCES), expected, atol=1e-6)


def test_a_tokenizer_json_of_a_static_model_is_used_unchanged(static):
    """It has neither [CLS] nor a tokenizer_config.json that says how it cleans text."""
    said = json.loads((static / "tokenizer.json").read_text())
    said["normalizer"]["lowercase"] = False
    for token in ("[CLS]", "[SEP]", "[MASK]"):
        said["model"]["vocab"][f"unused{token}"] = said["model"]["vocab"].pop(token)
    said["added_tokens"], said["post_processor"] = said["added_tokens"][:2], None
    (static / "tokenizer.json").write_text(json.dumps(said))
    tokenizer = load_tokenizer(static)
    assert "cls_token" not in tokenizer.special_tokens
    unknown = tokenizer.backend.token_to_id("[UNK]")
    assert tokenizer(["A man"], 9)[0] == [[unknown, tokenizer.backend.token_to_id("man")]]


def test_a_modules_json_of_thousands_of_modules_is_refused(tmp_path):
    """Each of them would be some requests to the hub."""
    entry = {"type": "sentence_transformers.models.Dense", "path": "{}_Dense"}
    entries = [entry | {"path": f"{n}_Dense"} for n in range(3000)]
    (tmp_path / "modules.json").write_text(json.dumps(entries))
    with pytest.raises(InputError, match="lists 3000 modules: at most 50 are supported"):
        list_modules(tmp_path)
