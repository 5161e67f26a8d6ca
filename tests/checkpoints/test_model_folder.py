"""ModelFolder: where the files of a model are, and that each of them is read once."""

import json
import os
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from conftest import (
    SENTENCES,
    VOCABULARY,
    move_first_module,
    store_weights,
    stored_weights,
    tiny_model,
    tiny_static_model,
)

from tmft.checkpoints import sentence_folder
from tmft.checkpoints.model_folder import MODEL_FILES, RUN_FILES, VOCABULARY_FILES, ModelFolder
from tmft.checkpoints.tokenizer_kinds import TOKENIZER_KINDS
from tmft.checkpoints.tokenizers import load_tokenizer
from tmft.embedding.modules import Dense
from tmft.errors import InputError
from tmft.io.atomic import WRITING
from tmft.runs.predictor import HEAD_FILE
from tmft.runs.result_json import RESULT_FILE
from tmft.runs.run_result import PREDICTIONS_FILE
from tmft.sentence_encoder import SentenceEncoder

V = len(VOCABULARY)


def test_a_config_of_an_encoder_at_the_top_wins_over_a_subfolder(transformer):
    shutil.copy(transformer / "0_Transformer/config.json", transformer)
    assert ModelFolder(transformer).encoder_subfolder == ""
    (transformer / "config.json").write_text('{"__version__": {"sentence_transformers": "0.1"}}')
    assert ModelFolder(transformer).encoder_subfolder == "0_Transformer"
    (transformer / "config.json").unlink()
    (transformer / "model.safetensors").write_bytes(b"")
    assert ModelFolder(transformer).encoder_subfolder == ""


@pytest.fixture
def transformer(tiny_folder) -> Path:
    return move_first_module(tiny_folder, "0_Transformer")


@pytest.fixture
def static(tmp_path) -> Path:
    """As sentence-transformers leaves it: no config.json."""
    tiny_static_model().save_pretrained(tmp_path / "static")
    for file in ("config.json", "tokenizer_config.json"):
        (tmp_path / "static" / file).unlink()
    return tmp_path / "static"


def say(folder: Path, *modules: tuple[str, str]) -> Path:
    folder.mkdir(exist_ok=True)
    entries = [{"type": f"sentence_transformers.models.{kind}", "path": path} for kind, path in modules]
    (folder / "modules.json").write_text(json.dumps(entries))
    return folder


# ---------------------------------------------------------------------- where the encoder is

# modules.json -> the folder of the encoder, and whether the model is static.
MODULES = {
    (): ("", False),
    (("Transformer", ""),): ("", False),
    (("Transformer", "0_T"), ("WordWeights", "1_W"), ("Pooling", "2_P"), ("Dense", "3_D")): ("0_T", False),
    (("StaticEmbedding", "."),): ("", True),  # as model2vec says it
    (("StaticEmbedding", "0_S"), ("Normalize", "1_N")): ("0_S", True),
    (("Transformer", ""), ("StaticEmbedding", "1_S")): ("", False),
    (("Pooling", "0_P"), ("Transformer", "1_T")): ("", False),
    (("CNN", "0_C"), ("Transformer", "1_T")): ("", False),
}


@pytest.mark.parametrize("modules", MODULES)
def test_the_first_module_says_where_the_encoder_is(modules, tmp_path):
    assert ModelFolder(tmp_path).modules == []
    folder = ModelFolder(say(tmp_path, *modules))
    assert folder.modules == [(kind, path.strip(".")) for kind, path in modules]
    assert (folder.encoder_subfolder, folder.is_static) == MODULES[modules]


# ------------------------------------------------------------------------------- 0_Transformer


@pytest.mark.parametrize("file", ["config.json", "model.safetensors"])
def test_a_missing_file_of_a_transformer_below_is_one_line(transformer, file):
    (transformer / "0_Transformer" / file).unlink()
    with pytest.raises(InputError, match=f"no (config.json|weights) in {transformer}"):
        ModelFolder.open(transformer)


def test_a_transformer_below_that_is_saved_over_itself_is_in_the_root(transformer):
    model = SentenceEncoder.from_pretrained(transformer, layer=2)
    model.save_pretrained(transformer)
    assert ModelFolder(transformer).encoder_path == transformer
    assert np.array_equal(
        SentenceEncoder.from_pretrained(transformer).encode(SENTENCES), model.encode(SENTENCES)
    )


# ------------------------------------------------------------------------------- static


def test_the_config_of_a_static_model_is_its_size(static):
    assert ModelFolder(static).config_dict == {"model_type": "static", "vocab_size": V, "hidden_size": 8}
    assert ModelFolder(static).config().num_hidden_layers == 0


def test_a_static_table_without_weights_is_one_line_even_where_none_are_read(static):
    (static / "model.safetensors").unlink()
    with pytest.raises(InputError, match="no weights in .*static: expected one of model.safetensors, "):
        ModelFolder.open(static, weights=False)


def test_a_table_of_model2vec_is_opened(static):
    """Whose tensor is called embeddings; sentence-transformers opens it as a StaticEmbedding, too."""
    say(static, ("StaticEmbedding", "."), ("Normalize", "1_Normalize"))
    store_weights(static, {"embeddings": stored_weights(static)["embedding.weight"]})
    plain = tiny_static_model().encode(SENTENCES)
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


def test_each_file_is_opened_once(tmp_path):
    """Also of a model with modules, prompts and a mix of layers."""
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
    command = [sys.executable, "-c", script, str(tmp_path / "mixed")]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "1\n"


def test_a_model_that_is_saved_while_it_is_loaded_is_refused(tmp_path, monkeypatch):
    """Else it could be a mix of the two."""
    model = tiny_model()
    model.save_pretrained(tmp_path)

    def save_and_load(*given):
        model.save_pretrained(tmp_path)
        return load_tokenizer(*given)

    monkeypatch.setattr(sentence_folder, "load_tokenizer", save_and_load)
    with pytest.raises(InputError, match="was changed while it was read: try again when it is complete"):
        SentenceEncoder.from_pretrained(tmp_path)


def test_a_folder_that_is_half_written_says_so(tmp_path):
    (tmp_path / f"{WRITING}-1").mkdir()
    with pytest.raises(InputError, match="is not complete: wait until it is saved, or save it again"):
        ModelFolder.open(tmp_path)


class Killed(BaseException):
    """Ends the process, in place of a signal."""


def test_a_save_that_is_killed_at_any_moment_leaves_one_of_both_models_or_none(tmp_path, monkeypatch):
    old, new = tiny_static_model(), tiny_static_model()
    for weight in new.parameters():
        weight.data.mul_(-3)
    new.similarity_fn_name, new.prompts, new.default_prompt_name = "dot", {"x": "music "}, "x"
    new.head_modules.append(Dense(new.dimensions, new.dimensions))
    expected = [(model.similarity_fn_name, model.encode(SENTENCES).tolist()) for model in (old, new)]
    countdown = {"events": 0}

    def killed_before(function):
        def count_down(*args, **kwargs):
            countdown["events"] -= 1
            if countdown["events"] == 0:
                raise Killed
            return function(*args, **kwargs)

        return count_down

    folder, found, problems = tmp_path / "model", set(), set()
    for event in range(1, 1000):
        old.save_pretrained(folder)
        with monkeypatch.context() as patch, suppress(Killed):
            countdown["events"] = event
            patch.setattr(os, "replace", killed_before(os.replace))
            patch.setattr(Path, "unlink", killed_before(Path.unlink))
            new.save_pretrained(folder)
        try:
            model = SentenceEncoder.from_pretrained(folder)
            found.add(expected.index((model.similarity_fn_name, model.encode(SENTENCES).tolist())))
        except InputError as error:
            problems.add(str(error))
        if countdown["events"] > 0:  # it was complete before
            break
    assert found == {0, 1} and problems


def test_the_vocabulary_files_are_those_of_all_kinds():
    names = {name for kind in TOKENIZER_KINDS.values() for name in kind.vocabulary_files}
    assert names == set(VOCABULARY_FILES)


def test_a_folder_holds_what_one_save_wrote(tmp_path):
    """What another model, another library or a run has left there would be read as part of this model."""
    assert RUN_FILES == (RESULT_FILE, HEAD_FILE, PREDICTIONS_FILE)
    tiny_model().save_pretrained(tmp_path / "new")
    written = {path.relative_to(tmp_path / "new") for path in (tmp_path / "new").rglob("*") if path.is_file()}
    for name in MODEL_FILES:
        (tmp_path / "old" / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / "old" / name).write_text("of another model")
    (tmp_path / "old/notes.txt").write_text("mine")
    tiny_model().save_pretrained(tmp_path / "old")
    left = {path.relative_to(tmp_path / "old") for path in (tmp_path / "old").rglob("*") if path.is_file()}
    assert left == written | {Path("notes.txt")}
