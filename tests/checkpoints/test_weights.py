"""The weights of a checkpoint in every form of file: read when asked for, and nothing in them is ever run."""

import json
import os
import pickle
import shutil

import pytest
import torch
from conftest import load_encoder, store_weights, stored_weights
from safetensors.torch import save_file

from tmft.checkpoints.model_folder import ModelFolder
from tmft.errors import InputError


def to_bin(folder, content, **how) -> None:
    (folder / "model.safetensors").unlink(missing_ok=True)
    torch.save(content, folder / "pytorch_model.bin", **how)


def to_shards(folder, name: str = "model.safetensors", save=save_file) -> None:
    """One file for the embeddings and layer 0, one for each further layer."""
    stem, ending = name.split(".")
    weight_map, files = {}, {}
    for tensor_name, tensor in stored_weights(folder).items():
        number = tensor_name.split(".")[2] if tensor_name.startswith("encoder.layer.") else "0"
        weight_map[tensor_name] = f"{stem}-0000{number}.{ending}"
        files.setdefault(weight_map[tensor_name], {})[tensor_name] = tensor
    for file, tensors in files.items():
        save(tensors, folder / file)
    (folder / "model.safetensors").unlink()
    (folder / f"{name}.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


FORMS = {
    "one file": lambda folder: None,
    "shards": to_shards,
    "shards of bin": lambda folder: to_shards(folder, "pytorch_model.bin", torch.save),
    "bin": lambda folder: to_bin(folder, stored_weights(folder)),
    "bin of old torch": lambda folder: to_bin(
        folder, stored_weights(folder), _use_new_zipfile_serialization=False
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_file_gives_the_same_tensors_and_only_those_that_are_named(form, tiny_folder):
    before = stored_weights(tiny_folder)
    FORMS[form](tiny_folder)
    files = ModelFolder(tiny_folder).weights
    assert set(files.names) == set(before)
    for wanted in (list(before), ["embeddings.LayerNorm.bias", "encoder.layer.3.output.dense.bias"]):
        read = files.read_tensors(wanted)
        assert list(read) == wanted and all(torch.equal(read[name], before[name]) for name in wanted)


def test_safetensors_are_preferred(tiny_folder):
    torch.save({}, tiny_folder / "pytorch_model.bin")
    assert ModelFolder(tiny_folder).weights.path.name == "model.safetensors"


def test_shards_of_higher_layers_need_not_even_be_there(tiny_folder):
    expected = load_encoder(tiny_folder, 2).state_dict()
    to_shards(tiny_folder)
    (tiny_folder / "model-00003.safetensors").unlink()
    again = load_encoder(tiny_folder, 2).state_dict()
    assert all(torch.equal(again[name], weight) for name, weight in expected.items())


def test_a_shard_that_is_needed_and_absent_is_named(tiny_folder):
    to_shards(tiny_folder)
    (tiny_folder / "model-00003.safetensors").unlink()
    with pytest.raises(
        InputError, match="model-00003.safetensors cannot be read .*No such file.*: download it again"
    ):
        load_encoder(tiny_folder)


# ------------------------------------------------------------------------------------- what can be wrong


def cut_short(path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])


class RunsCode:
    """Unpickling this makes the folder that it names."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return (os.mkdir, (self.path,))


def pickled_code(folder):
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(RunsCode(folder / "made"), protocol=2))


def change_index(folder, old: str, new: str):
    to_shards(folder)
    index = folder / "model.safetensors.index.json"
    index.write_text(index.read_text().replace(old, new))


def code_in_a_shard(folder):
    to_shards(folder, "pytorch_model.bin", torch.save)
    (folder / "pytorch_model-00002.bin").write_bytes(pickle.dumps(RunsCode(folder / "made"), protocol=2))


def shard_without_a_tensor(folder):
    to_shards(folder, "pytorch_model.bin", torch.save)
    torch.save({}, folder / "pytorch_model-00002.bin")


def shard_elsewhere(folder):
    """A link, as an unpacked archive may hold one."""
    to_shards(folder)
    shutil.move(folder / "model-00002.safetensors", folder.parent / "elsewhere")
    (folder / "model-00002.safetensors").symlink_to(folder.parent / "elsewhere")


OBJECTS = "holds Python objects, not only tensors"
WRONG = [  # words of the message, and what is changed
    (
        r"model.safetensors cannot be read \(.*\): download it again",
        lambda folder: cut_short(folder / "model.safetensors", -100),
    ),
    (
        "pytorch_model.bin cannot be read",
        lambda folder: [
            to_bin(folder, stored_weights(folder)),
            cut_short(folder / "pytorch_model.bin", 2000),
        ],
    ),
    (
        f"pytorch_model.bin {OBJECTS}.*: use a model.safetensors",
        lambda folder: to_bin(folder, torch.nn.Linear(2, 2)),
    ),
    (f"pytorch_model.bin {OBJECTS}", pickled_code),
    (f"pytorch_model-00002.bin {OBJECTS}", code_in_a_shard),
    (
        "pytorch_model.bin is not a plain state dict",
        lambda folder: to_bin(folder, {"model": {"weight": torch.ones(1)}}),
    ),
    (
        r"in .*pytorch_model-00002.bin cannot be read \('encoder.layer.2.* is missing",
        shard_without_a_tensor,
    ),
    ("model-00002.safetensors is a link out of its folder: refused", shard_elsewhere),
    (
        r"index.json cannot be read \(it points outside its folder, to '../model-00002.*'\)",
        lambda folder: change_index(folder, "model-00002", "../model-00002"),
    ),
    (
        r"index.json cannot be read \('weight_map' is missing\): restore the file",
        lambda folder: change_index(folder, "weight_map", "map"),
    ),
]


@pytest.mark.parametrize(("words", "change"), WRONG)
def test_a_wrong_file_is_one_clear_line(words, change, tiny_folder):
    change(tiny_folder)
    with pytest.raises(InputError, match=words) as error:
        load_encoder(tiny_folder)
    assert "\n" not in str(error.value)


def test_finite_values_with_an_infinite_sum_are_read(tiny_folder):
    weights = {name: torch.full_like(tensor, 3e38) for name, tensor in stored_weights(tiny_folder).items()}
    store_weights(tiny_folder, weights)
    assert load_encoder(tiny_folder).embeddings.word.weight[0, 0] == torch.tensor(3e38)


def test_code_in_a_file_is_not_run(tiny_folder):
    pickled_code(tiny_folder)
    content = (tiny_folder / "pytorch_model.bin").read_bytes()
    with pytest.raises(InputError):
        load_encoder(tiny_folder)
    assert not (tiny_folder / "made").exists()
    pickle.loads(content)
    assert (tiny_folder / "made").exists()  # what anybody else who unpickles it gets
