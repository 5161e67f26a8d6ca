"""What is saved: the files of transformers, the same bytes each time, and never a torn one."""

import json

import pytest
import torch
from conftest import load_encoder, stored_weights, tiny_model

from tmft.checkpoints.save import save_encoder
from tmft.embedding.modules import Dense
from tmft.errors import InputError
from tmft.io.atomic import check_writable
from tmft.runs.predictor import save_heads


def test_the_config_is_that_of_the_truncated_encoder(tiny_folder, tmp_path):
    save_encoder(load_encoder(tiny_folder, layer=2), tmp_path / "kept")
    before, after = (
        json.loads((folder / "config.json").read_text()) for folder in (tiny_folder, tmp_path / "kept")
    )
    assert before | {"num_hidden_layers": 2} == after


def test_a_head_is_saved_with_its_names_its_class_and_its_config_keys(tiny_folder, tmp_path):
    encoder = load_encoder(tiny_folder, layer=1)
    head = {"classifier.weight": torch.ones(2, 24)}
    save_encoder(encoder, tmp_path / "head", head, "ElectraForSomething", {"num_labels": 2})
    names = set(stored_weights(tmp_path / "head"))
    assert {name for name in names if not name.startswith("electra.")} == {"classifier.weight"}
    content = json.loads((tmp_path / "head/config.json").read_text())
    assert content["architectures"] == ["ElectraForSomething"]
    assert content["num_labels"] == 2


# ---------------------------------------------------------------------------------------------- small files


def test_the_folder_of_a_writable_path_need_not_exist_yet(tmp_path):
    check_writable(None, tmp_path / "new" / "newer" / "plot.png")
    assert not list(tmp_path.iterdir())


def test_a_file_of_scores_in_the_folder_of_a_run_may_be_replaced(tmp_path):
    for name in ("scores.json", "result.json"):
        (tmp_path / name).write_text("{}")
    check_writable(tmp_path / "scores.json", inputs=[tmp_path])
    with pytest.raises(InputError, match="result.json: the command reads .*, name another place"):
        check_writable(tmp_path / "result.json", inputs=[tmp_path])


def half_with_inf(model):
    model.half().encoder.layers[0].attention.query.bias.data[0] = float("inf")


NOT_FINITE = {  # what is changed -> the dtype that is saved, and the tensor that is named
    "a weight beyond float16": (lambda m: weight_of(m).view(-1)[:1].fill_(1e5), "float16", "query.weight"),
    "a word beyond float16": (
        lambda m: m.encoder.embeddings.word.weight[3, :1].fill_(-1e5),
        "float16",
        "word",
    ),
    "a Dense beyond float16": (lambda m: m.head_modules[0].weight[0, :1].fill_(1e5), "float16", "linear"),
    "NaN": (lambda m: weight_of(m).fill_(float("nan")), None, "query.weight"),
    "inf in half precision": (half_with_inf, None, "query.bias"),
}


def weight_of(model):
    return model.encoder.layers[0].attention.query.weight


@pytest.mark.parametrize("name", NOT_FINITE)
def test_what_could_not_be_read_again_is_not_written(name, tmp_path):
    change, dtype, tensor = NOT_FINITE[name]
    model = tiny_model()
    model.head_modules = torch.nn.Sequential(Dense(model.dimensions, 8))
    model.save_pretrained(tmp_path / "model")
    before = {path.name: path.read_bytes() for path in (tmp_path / "model").rglob("*") if path.is_file()}
    with torch.no_grad():
        change(model)
    with pytest.raises(InputError, match=f"{tensor}.*(nan or inf|not finite in).* .model.safetensors.: "):
        model.save_pretrained(tmp_path / "model", dtype)
    after = {path.name: path.read_bytes() for path in (tmp_path / "model").rglob("*") if path.is_file()}
    assert after == before


def test_a_head_that_is_not_finite_is_not_written(tmp_path):
    head = torch.nn.Linear(2, 2)
    torch.nn.init.constant_(head.weight, float("nan"))
    with pytest.raises(InputError, match=r"weight holds nan or inf .head.safetensors."):
        save_heads({"": head}, tmp_path)
    assert not list(tmp_path.iterdir())
