"""Reading checkpoints, every form of file, with every tensor accounted for and nothing run; and saving."""

import json
import pickle
import shutil
from pathlib import Path

import pytest
import torch
from conftest import tiny_config
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from tmft.families.config import EncoderConfig

import tmft.checkpoint
import tmft.files.weights
from tmft.checkpoint import load_encoder, parameter_counts, read_encoder
from tmft.errors import InputError
from tmft.files.weights import find, write_file

IDS = torch.tensor([[2, 9, 7, 12, 3]])


def hidden(folder: Path, layer=None) -> torch.Tensor:
    with torch.inference_mode():
        return load_encoder(folder, layer)(IDS, IDS != 0)


def weights_of(folder: Path) -> dict:
    return load_file(folder / "model.safetensors")


def rewrite(folder: Path, weights: dict) -> None:
    save_file(weights, folder / "model.safetensors")


def to_bin(folder: Path, content, **how) -> None:
    (folder / "model.safetensors").unlink(missing_ok=True)
    torch.save(content, folder / "pytorch_model.bin", **how)


def to_shards(folder: Path) -> None:
    """One file for the embeddings and layer 0, one for each further layer."""
    weight_map, files = {}, {}
    for name, tensor in weights_of(folder).items():
        number = name.split(".")[2] if name.startswith("encoder.layer.") else "0"
        weight_map[name] = f"model-0000{number}.safetensors"
        files.setdefault(weight_map[name], {})[name] = tensor
    for file, tensors in files.items():
        save_file(tensors, folder / file)
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": weight_map})
    )


# ---------------------------------------------------------------------------------------------- all forms


def prefixed(folder):
    rewrite(folder, {f"electra.{name}": tensor for name, tensor in weights_of(folder).items()})


def with_heads_and_buffers(folder):
    extra = {
        "discriminator_predictions.dense.weight": torch.ones(24, 24),
        "generator_lm_head.bias": torch.ones(7),
        "electra.embeddings.position_ids": torch.arange(40)[None],
    }
    rewrite(folder, {f"electra.{name}": tensor for name, tensor in weights_of(folder).items()} | extra)


def legacy_norms(folder):
    old = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    renamed = {}
    for name, tensor in weights_of(folder).items():
        for new, legacy in old.items():
            name = name.replace(new, legacy)
        renamed[name] = tensor
    rewrite(folder, renamed)


FORMS = {
    "prefix": prefixed,
    "heads and buffers": with_heads_and_buffers,
    "gamma and beta": legacy_norms,
    "shards": to_shards,
    "bin": lambda folder: to_bin(folder, weights_of(folder)),
    "bin of old torch": lambda folder: to_bin(
        folder, weights_of(folder), _use_new_zipfile_serialization=False
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_file_gives_the_same_encoder(form, tiny_folder):
    before = hidden(tiny_folder), hidden(tiny_folder, 2)
    FORMS[form](tiny_folder)
    assert torch.equal(hidden(tiny_folder), before[0]) and torch.equal(hidden(tiny_folder, 2), before[1])


def test_half_precision_files_become_float32(tiny_folder):
    rewrite(tiny_folder, {name: tensor.half() for name, tensor in weights_of(tiny_folder).items()})
    encoder = load_encoder(tiny_folder)
    assert {weight.dtype for weight in encoder.parameters()} == {torch.float32}
    name = "embeddings.word_embeddings.weight"
    assert torch.equal(encoder.embeddings.word.weight, weights_of(tiny_folder)[name].float())


def test_tensors_of_higher_layers_are_never_read(tiny_folder, monkeypatch):
    read = []

    class Spy:
        def __init__(self, *args, **kwargs):
            self.file = safe_open(*args, **kwargs)

        def __enter__(self):
            return self

        def __exit__(self, *error):
            return None

        def keys(self):
            return self.file.keys()

        def get_tensor(self, name):
            read.append(name)
            return self.file.get_tensor(name)

    monkeypatch.setattr(tmft.files.weights, "safe_open", Spy)
    read_encoder(tiny_folder, layer=1)
    assert any("layer.0." in name for name in read) and not any("layer.1." in name for name in read)


def test_shards_of_higher_layers_need_not_even_be_there(tiny_folder):
    expected = hidden(tiny_folder, 2)
    to_shards(tiny_folder)
    (tiny_folder / "model-00003.safetensors").unlink()
    assert torch.equal(hidden(tiny_folder, 2), expected)
    with pytest.raises(InputError, match="model-00003.safetensors is missing"):
        load_encoder(tiny_folder)


def test_the_report_says_what_was_kept_and_what_was_left(tiny_folder):
    with_heads_and_buffers(tiny_folder)
    encoder, report = read_encoder(tiny_folder, layer=1)
    count = sum(weight.numel() for weight in encoder.parameters())
    assert str(report) == (
        f"kept the embeddings and 1 of 4 layers: 23 tensors, {count:,} parameters; "
        "left 48 tensors of the layers above, discriminator_predictions (1), generator_lm_head (1)"
    )


# ---------------------------------------------------------------------------------------- what can be wrong


def drop_a_tensor(folder):
    weights = weights_of(folder)
    del weights["encoder.layer.1.output.dense.bias"]
    rewrite(folder, weights)


def rename_a_tensor(folder):
    weights = weights_of(folder)
    weights["encoder.layer.1.attention.self.gate.weight"] = torch.ones(1)
    rewrite(folder, weights)


def double_a_tensor(folder):
    weights = weights_of(folder)
    weights["electra.embeddings.LayerNorm.bias"] = torch.ones(12)
    rewrite(folder, weights)


def reshape_a_tensor(folder):
    weights = weights_of(folder)
    weights["embeddings_project.weight"] = torch.ones(24, 13)
    rewrite(folder, weights)


def count_a_tensor(folder):
    rewrite(folder, weights_of(folder) | {"embeddings_project.bias": torch.ones(24, dtype=torch.int64)})


def state_too_few_layers(folder):
    (folder / "config.json").write_text(json.dumps(tiny_config(num_hidden_layers=3)))


def cut_short(folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def garbage(folder):
    (folder / "model.safetensors").write_bytes(b"\xff" * 1000)


def bin_cut_short(folder):
    to_bin(folder, weights_of(folder))
    path = folder / "pytorch_model.bin"
    path.write_bytes(path.read_bytes()[:2000])


def bin_garbage(folder):
    to_bin(folder, {})
    (folder / "pytorch_model.bin").write_bytes(b"no pickle at all")


class RunsCode:
    """Unpickling this would create the file that the test looks for."""

    def __reduce__(self):
        return (Path("/nonexistent").joinpath, ())


def pickled_module(folder):
    to_bin(folder, torch.nn.Linear(2, 2))


def pickled_code(folder):
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(RunsCode(), protocol=2))


def not_a_state_dict(folder):
    to_bin(folder, {"model": {"weight": torch.ones(1)}})


def index_outside(folder):
    to_shards(folder)
    index = folder / "model.safetensors.index.json"
    index.write_text(index.read_text().replace("model-00002", "../model-00002"))


WRONG = {
    drop_a_tensor: r"missing tensor encoder.layer.1.output.dense.bias .*model.safetensors\)",
    rename_a_tensor: r"unknown tensor encoder.layer.1.attention.self.gate.weight",
    double_a_tensor: r"embeddings.LayerNorm.bias and .* are the same weight",
    reshape_a_tensor: r"embeddings_project.weight has shape \(24, 13\) .* asks for \(24, 12\)",
    count_a_tensor: r"embeddings_project.bias has dtype torch.int64",
    state_too_few_layers: r"encoder.layer.3.* is above the 3 layers of config.json",
    cut_short: r"model.safetensors is cut short or damaged",
    garbage: r"model.safetensors is cut short or damaged",
    bin_cut_short: r"pytorch_model.bin is cut short or damaged",
    bin_garbage: r"pytorch_model.bin is cut short or damaged",
    pickled_module: r"pytorch_model.bin holds Python objects, not only tensors",
    pickled_code: r"pytorch_model.bin holds Python objects, not only tensors",
    not_a_state_dict: r"pytorch_model.bin is not a plain state dict",
    index_outside: r"points outside its folder",
    lambda folder: (
        folder / "model.safetensors"
    ).unlink(): r"no weights in .*: expected one of model.safetensors",
    lambda folder: (folder / "config.json").unlink(): r"no config.json in",
    lambda folder: (folder / "config.json").write_text("{"): r"config.json cannot be read as JSON",
    lambda folder: (folder / "config.json").write_text("[]"): r"config.json holds a list: expected a dict",
    shutil.rmtree: r"no folder .*tiny",
}


@pytest.mark.parametrize("damage", WRONG, ids=lambda damage: damage.__name__)
def test_a_wrong_checkpoint_is_one_clear_line(damage, tiny_folder):
    damage(tiny_folder)
    with pytest.raises(InputError, match=WRONG[damage]) as error:
        load_encoder(tiny_folder)
    assert "\n" not in str(error.value)


def test_a_file_is_no_folder(tiny_folder):
    with pytest.raises(InputError, match="is a file: name the folder"):
        find(tiny_folder / "model.safetensors")


# -------------------------------------------------------------------------------------- counting, saving


def electra(size: str, **changes) -> EncoderConfig:
    sizes = {
        "D small": (128, 256, 12, 4, 1024),
        "D base": (768, 768, 12, 12, 3072),
        "D large": (1024, 1024, 24, 16, 4096),
        "G small": (128, 256, 12, 4, 1024),
        "G base": (768, 256, 12, 4, 1024),
        "G large": (1024, 256, 24, 4, 1024),
    }
    E, D, L, H, I = sizes[size]  # noqa: E741
    return config_of("electra", 30522, E, D, L, H, I)


def config_of(model_type, V, E, D, L, H, I) -> EncoderConfig:  # noqa: E741
    return EncoderConfig.from_dict(
        {
            "model_type": model_type,
            "vocab_size": V,
            "embedding_size": E,
            "hidden_size": D,
            "num_hidden_layers": L,
            "num_attention_heads": H,
            "intermediate_size": I,
        }
    )


def bert(V, D, L, H) -> EncoderConfig:
    return config_of("bert", V, D, D, L, H, 4 * D)


# name: (config, layer, millions in the paper, all parameters if they are more)
PAPER = {
    "BERT tiny": (bert(30522, 128, 2, 2), 2, "4.37", None),
    "BERT mini": (bert(30522, 256, 4, 4), 4, "11.10", None),
    "BERT small": (bert(30522, 512, 4, 8), 4, "28.50", None),
    "BERT medium": (bert(30522, 512, 8, 8), 8, "41.11", None),
    "BERT base cased": (bert(28996, 768, 12, 12), 12, "107.72", None),
    "BERT large cased": (bert(28996, 1024, 24, 16), 24, "332.53", None),
    "ELECTRA D small @1": (electra("D small"), 1, "4.76", 33_024),
    "ELECTRA D small @12": (electra("D small"), 12, "13.45", 33_024),
    "ELECTRA D base @3": (electra("D base"), 3, "45.10", None),
    "ELECTRA D base @7": (electra("D base"), 7, "73.45", None),
    "ELECTRA D base @9": (electra("D base"), 9, "87.63", None),
    "ELECTRA D base @12": (electra("D base"), 12, "108.89", None),
    "ELECTRA D large @12": (electra("D large"), 12, "182.94", None),
    "ELECTRA D large @24": (electra("D large"), 24, "334.09", None),
    "ELECTRA G small @12": (electra("G small"), 12, "13.45", 33_024),
    "ELECTRA G base @11": (electra("G base"), 11, "32.52", 196_864),
    "ELECTRA G base @12": (electra("G base"), 12, "33.31", 196_864),
    "ELECTRA G large @24": (electra("G large"), 24, "50.74", 262_400),
}


@pytest.mark.parametrize("name", PAPER)
def test_parameter_counts_are_those_of_the_paper(name):
    config, layer, millions, projection = PAPER[name]
    counts = parameter_counts(config, layer)
    assert f"{counts['paper'] / 1e6:.2f}" == millions
    assert counts["stored"] == counts["paper"] + (projection or 0)


def test_saving_twice_gives_the_same_bytes_and_no_name_is_lost(tiny_folder, tmp_path):
    encoder, _ = read_encoder(tiny_folder, layer=2)
    for folder in (tmp_path / "a", tmp_path / "b"):
        tmft.checkpoint.save_encoder(encoder, folder)
    assert (tmp_path / "a/model.safetensors").read_bytes() == (tmp_path / "b/model.safetensors").read_bytes()
    original, saved = weights_of(tiny_folder), weights_of(tmp_path / "a")
    assert all(torch.equal(saved[name], original[name]) for name in saved)
    assert {name for name in original if name not in saved} == {
        name for name in original if "layer.2." in name or "layer.3." in name
    }


def test_a_crash_while_writing_leaves_the_old_file(tmp_path):
    path = tmp_path / "result.json"
    write_file(path, "old")

    def crash(new: Path) -> None:
        new.write_text("half of the n")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_file(path, crash)
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


def test_a_place_that_cannot_be_written_is_one_clear_line(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(InputError, match="cannot write .*: check space and permissions"):
        write_file(tmp_path / "file" / "config.json", "{}")
