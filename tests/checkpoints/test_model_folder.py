"""ModelFolder: where the files of a model are, and that each of them is read once."""

import json
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import SENTENCES, VOCABULARY, store_weights, stored_weights, tiny_model
from safetensors.torch import save_file

from tmft.checkpoints.load import load_encoder
from tmft.checkpoints.model_folder import VOCABULARY_FILES, ModelFolder
from tmft.checkpoints.tokenizer_kinds import TOKENIZER_KINDS
from tmft.checkpoints.tokenizers import load_tokenizer
from tmft.embedding.modules import Dense
from tmft.errors import InputError
from tmft.evaluation.static_models import random_word_vectors, static_encoder, without_special_tokens
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


def test_a_config_of_an_encoder_at_the_top_wins_over_a_subfolder(transformer):
    shutil.copy(transformer / "0_Transformer/config.json", transformer)
    assert ModelFolder(transformer).encoder_subfolder == ""
    (transformer / "config.json").write_text('{"__version__": {"sentence_transformers": "0.1"}}')
    assert ModelFolder(transformer).encoder_subfolder == "0_Transformer"
    (transformer / "config.json").unlink()
    (transformer / "model.safetensors").write_bytes(b"")
    assert ModelFolder(transformer).encoder_subfolder == ""


def test_a_config_that_was_removed_after_the_folder_was_opened_is_named(transformer):
    (transformer / "0_Transformer/config.json").unlink()
    with pytest.raises(InputError, match="0_Transformer/config.json cannot be read"):
        _ = ModelFolder(transformer).config_dict


@pytest.mark.parametrize("tensors", [{"a": torch.ones(3)}, {"a": torch.ones(3, 4), "b": torch.ones(3, 4)}])
def test_a_static_model_has_one_matrix(tensors, tmp_path):
    static_model().save_pretrained(tmp_path)
    store_weights(tmp_path, tensors)
    with pytest.raises(InputError, match="holds tensors of shapes .*: a StaticEmbedding has one, embedding"):
        _ = ModelFolder(tmp_path).config_dict


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


# ------------------------------------------------------------------------------- modules


def test_modules_are_listed_in_their_order(tmp_path):
    modules = [("Transformer", ""), ("WordWeights", "0_W"), ("Pooling", "1_Pooling"), ("Dense", "2_Dense")]
    assert ModelFolder(say(tmp_path, *modules)).modules == modules


def test_a_type_without_a_package_is_its_own_name(tmp_path):
    (tmp_path / "modules.json").write_text('[{"type": "StaticEmbedding", "path": ""}]')
    assert ModelFolder(tmp_path).modules == [("StaticEmbedding", "")]


def test_a_folder_without_modules_json_has_no_modules(tmp_path):
    assert ModelFolder(tmp_path).modules == []


# ---------------------------------------------------------------------- where the encoder is


def test_the_transformer_folder_of_a_checkpoint_is_the_folder_itself(tiny_folder, tmp_path):
    assert ModelFolder(tiny_folder).encoder_path == tiny_folder
    assert ModelFolder(say(tmp_path / "a", ("Transformer", ""))).encoder_path == tmp_path / "a"
    assert (
        ModelFolder(say(tmp_path / "b", ("StaticEmbedding", "."))).encoder_path == tmp_path / "b"
    )  # as model2vec says it


@pytest.mark.parametrize(("kind", "path"), [("Transformer", "0_Transformer"), ("StaticEmbedding", "0_S")])
def test_the_transformer_folder_is_that_of_a_first_module_below(kind, path, tmp_path):
    assert ModelFolder(say(tmp_path, (kind, path), ("Pooling", "1_Pooling"))).encoder_path == tmp_path / path


OUTSIDE = ["../elsewhere", "..", "a/b", "/etc", "../..", "./a", "a/", "a\0", "a" * 300]


@pytest.mark.parametrize("path", OUTSIDE)
@pytest.mark.parametrize("kind", ["Transformer", "Pooling", "Dense", "WordWeights", "StaticEmbedding"])
def test_a_module_outside_of_the_folder_is_refused(kind, path, tmp_path):
    with pytest.raises(
        InputError, match="modules.json cannot be read .a .* is in .*, not in a folder directly below"
    ):
        assert ModelFolder(say(tmp_path / "a", ("Transformer", ""), (kind, path))).modules


def test_a_module_that_is_a_link_out_of_the_folder_is_refused(tmp_path):
    say(tmp_path / "a", ("Transformer", ""), ("Dense", "2_Dense"))
    (tmp_path / "b").mkdir()
    (tmp_path / "a/2_Dense").symlink_to(tmp_path / "b")
    with pytest.raises(InputError, match="2_Dense is a link out of its folder: refused"):
        assert ModelFolder(tmp_path / "a").modules


@pytest.mark.parametrize(
    ("listed", "message"),
    [
        ([None], "modules.json cannot be read .*: restore the file"),
        ([{"type": 1}], "modules.json cannot be read .type is 1, not a text"),
        ([{"path": "\ud800"}], "modules.json cannot be read .path is .*, not a text"),
    ],
)
def test_an_entry_that_is_no_module_is_one_line(listed, message, tmp_path):
    (tmp_path / "modules.json").write_text(json.dumps(listed))
    with pytest.raises(InputError, match=message):
        assert ModelFolder(tmp_path).modules


@pytest.mark.parametrize("kind", ["Pooling", "Dense", "CNN"])
def test_only_the_folder_of_an_encoder_is_a_transformer_folder(kind, tmp_path):
    assert (
        ModelFolder(say(tmp_path, (kind, "0_Other"), ("Transformer", "1_Transformer"))).encoder_path
        == tmp_path
    )


def test_weights_in_the_root_win_over_modules_json(tiny_folder):
    say(tiny_folder, ("Transformer", "0_Transformer"))
    assert ModelFolder(tiny_folder).encoder_path == tiny_folder


def test_a_config_with_only_a_version_is_no_checkpoint(transformer):
    """sentence-transformers before 2.0 wrote such a one beside 0_Transformer."""
    (transformer / "config.json").write_text('{"__version__": "1.2.0"}')
    assert ModelFolder(transformer).encoder_path == transformer / "0_Transformer"
    assert ModelFolder.open(transformer).path == transformer
    assert np.array_equal(
        SentenceEncoder.from_pretrained(transformer).encode(SENTENCES), tiny_model().encode(SENTENCES)
    )


# ------------------------------------------------------------------------------- 0_Transformer


def test_a_transformer_in_a_folder_of_its_own_is_the_same(transformer):
    assert ModelFolder.open(transformer).path == transformer
    expected = tiny_model().encode(SENTENCES)
    assert np.array_equal(SentenceEncoder.from_pretrained(transformer).encode(SENTENCES), expected)
    assert not ModelFolder(transformer).is_static


@pytest.mark.parametrize("layer", [0, 2])
def test_a_transformer_below_can_be_truncated(transformer, layer):
    assert len(load_encoder(transformer, layer).layers) == layer


@pytest.mark.parametrize("file", ["config.json", "model.safetensors"])
def test_a_missing_file_of_a_transformer_below_is_one_line(transformer, file):
    (transformer / "0_Transformer" / file).unlink()
    with pytest.raises(InputError, match=f"no (config.json|weights) in {transformer}"):
        ModelFolder.open(transformer)


def test_a_missing_tokenizer_of_a_transformer_below_is_one_line(transformer):
    (transformer / "0_Transformer/tokenizer.json").unlink()
    with pytest.raises(InputError, match="no tokenizer in .*tiny"):
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
    assert ModelFolder(tmp_path / "ours").encoder_path == tmp_path / "ours"
    assert np.array_equal(
        SentenceEncoder.from_pretrained(tmp_path / "ours").encode(SENTENCES), tiny_model().encode(SENTENCES)
    )


def test_a_transformer_below_that_is_saved_over_itself_is_in_the_root(transformer):
    model = SentenceEncoder.from_pretrained(transformer, layer=2)
    model.save_pretrained(transformer)
    assert ModelFolder(transformer).encoder_path == transformer
    assert np.array_equal(
        SentenceEncoder.from_pretrained(transformer).encode(SENTENCES), model.encode(SENTENCES)
    )


# ------------------------------------------------------------------------------- static


@pytest.mark.parametrize("place", ["", "0_StaticEmbedding"])
def test_a_static_model_is_loaded_from_the_root_or_from_below(static, place):
    if place:
        move_in(static, place)
    assert (
        ModelFolder(static).is_static
        and ModelFolder(static).encoder_path == static / place
        and ModelFolder.open(static).path == static
    )
    model = SentenceEncoder.from_pretrained(static)
    assert not model.tokenizer.add_special_tokens
    assert np.array_equal(model.encode(SENTENCES), static_model().encode(SENTENCES))


def test_the_config_of_a_static_model_is_its_size(static):
    assert ModelFolder(static).config_dict == {"model_type": "static", "vocab_size": V, "hidden_size": 8}
    assert ModelFolder(static).config().num_hidden_layers == 0


def test_the_config_of_other_models_is_their_config_json(tiny_folder):
    assert ModelFolder(tiny_folder).config_dict == json.loads((tiny_folder / "config.json").read_text())


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
    assert ModelFolder(say(tmp_path, *modules)).is_static is said


def test_a_static_table_without_weights_is_one_line_even_where_none_are_read(static):
    (static / "model.safetensors").unlink()
    with pytest.raises(InputError, match="no weights in .*static: expected one of model.safetensors, "):
        ModelFolder.open(static, weights=False)


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
    with pytest.raises(
        InputError, match="modules.json cannot be read .it lists 3000 modules, at most 50 are supported"
    ):
        assert ModelFolder(tmp_path).modules


def test_each_file_is_opened_once(tmp_path):
    """Also of a model with modules, prompts and a mix of layers."""
    model = static_model()
    model.head_modules.append(Dense(8, 5))
    model.prompts["query"] = "search: "
    model.save_pretrained(tmp_path / "static")
    model = SentenceEncoder.from_pretrained(saved := tmp_path / "static")
    model = tiny_model()
    model.head_modules.append(Dense(24, 5))
    model.layers, model.prompt = (1, 3), "a [X] is"
    model.save_pretrained(tmp_path / "mixed")
    script = """
import sys
opened = []
sys.addaudithook(lambda event, args: event == "open" and opened.append(str(args[0])))
from tmft import SentenceEncoder
SentenceEncoder.from_pretrained(sys.argv[1])
print(max(opened.count(name) for name in opened if name.startswith(sys.argv[1])))
"""
    for folder in (saved, tmp_path / "mixed"):
        command = [sys.executable, "-c", script, str(folder)]
        assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "1\n"


def test_a_model_that_is_saved_while_it_is_loaded_is_one_of_the_two(tmp_path):
    """Each loaded model is the first or the second one, never a mix of the two."""
    models = [tiny_model(), tiny_model()]
    for number, model in enumerate(models, start=1):
        model.head_modules.append(Dense(24, 5))
        for weight in model.parameters():
            weight.data.fill_(number / 10)
    models[0].save_pretrained(tmp_path)
    stop = threading.Event()

    def save_again_and_again():
        while not stop.is_set():
            for model in models:
                model.save_pretrained(tmp_path)

    thread = threading.Thread(target=save_again_and_again)
    thread.start()
    mixed = num_loaded = 0
    try:
        for _ in range(60):
            try:
                model = SentenceEncoder.from_pretrained(tmp_path)
            except InputError as error:
                assert "was changed while it was read" in str(error)
                continue
            num_loaded += 1
            mixed += len({weight.flatten()[0].item() for weight in model.parameters()}) > 1
    finally:
        stop.set()
        thread.join()
    assert mixed == 0 and num_loaded > 0


def test_a_model_that_cannot_be_written_leaves_the_old_one(tmp_path, monkeypatch):
    tiny_model().save_pretrained(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    model = tiny_model()
    model.max_length = 7
    monkeypatch.setattr(SentenceEncoder, "model_card", lambda self: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        model.save_pretrained(tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()} == before


def test_the_files_of_another_model_that_was_saved_here_before_are_removed(tmp_path):
    model = tiny_model()
    model.layers = (1, 3)
    model.save_pretrained(tmp_path)
    assert (tmp_path / "tmft.json").is_file()
    static_model().save_pretrained(tmp_path)
    assert not any((tmp_path / name).exists() for name in ("tmft.json", "1_Pooling/config.json", OLD))
    assert np.array_equal(
        SentenceEncoder.from_pretrained(tmp_path).encode(SENTENCES), static_model().encode(SENTENCES)
    )


def test_the_vocabulary_files_are_those_of_all_kinds():
    names = {name for kind in TOKENIZER_KINDS.values() for name in kind.vocabulary_files}
    assert names == set(VOCABULARY_FILES)
