"""Read modules.json of sentence-transformers, which lists the modules of a model and their folders."""

from pathlib import Path
from typing import Any

from tmft.checkpoints.weights import WEIGHT_FILES, WeightFiles
from tmft.errors import InputError, short_repr
from tmft.io.atomic import read_json
from tmft.io.files import is_file
from tmft.io.json_values import check_symlink, is_plain_name, typed_value

MAX_MODULES = 50  # of one model; the files of each of them are requests to the hub
STATIC_EMBEDDING = "StaticEmbedding"  # the module that takes the place of Transformer in a static model


def list_modules(folder: Path) -> list[tuple[str, str]]:
    """Return (class name, subfolder) for each module in modules.json, in order.

    The class name has no package: "Pooling". The subfolder '' means `folder` itself. The list is empty if
    there is no modules.json. Raises InputError if modules.json is damaged, or if a module is neither in
    `folder` nor directly below it.
    """
    path, modules = folder / "modules.json", []
    entries = read_json(path, list) if is_file(path) else []
    if len(entries) > MAX_MODULES:
        raise InputError(f"{path} lists {len(entries)} modules: at most {MAX_MODULES} are supported")
    for entry in entries:
        if not isinstance(entry, dict):
            raise InputError(f"{path} lists {short_repr(entry)}: expected objects with a type and a path")
        kind, subfolder = (typed_value(entry, key, str, path) or "" for key in ("type", "path"))
        kind, subfolder = kind.rpartition(".")[2], "" if subfolder == "." else subfolder
        if subfolder and not is_plain_name(subfolder):
            where = short_repr(subfolder)
            raise InputError(f"{path} has a {kind} in {where}: expected a folder directly below")
        check_symlink(folder / subfolder, folder)
        modules.append((kind, subfolder))
    return modules


def transformer_folder(folder: Path) -> Path:
    """Return the folder with the configuration, the weights and the tokenizer of the encoder.

    It is `folder` itself, or the subfolder of the first module in its modules.json. A config.json in `folder`
    is ignored if it is not the configuration of an encoder: old versions of sentence-transformers wrote one
    that says which version they are.
    """
    kind, subfolder = next(iter(list_modules(folder)), ("", ""))
    if not subfolder or kind not in ("Transformer", STATIC_EMBEDDING) or has_weights(folder):
        return folder
    config = read_json(folder / "config.json") if is_file(folder / "config.json") else {}
    return folder if config.keys() & {"model_type", "hidden_size", "vocab_size"} else folder / subfolder


def has_weights(folder: Path) -> bool:
    """Return whether a folder has one of the WEIGHT_FILES."""
    return any(is_file(folder / name) for name in WEIGHT_FILES)


def is_static_model(folder: Path) -> bool:
    """Return whether a folder has a static model: the first module in modules.json is a StaticEmbedding."""
    return any(kind == STATIC_EMBEDDING for kind, _ in list_modules(folder)[:1])


def read_config_dict(folder: Path) -> dict[str, Any]:
    """Return the config.json of a checkpoint folder as a dict.

    A static model has no config.json: its dict is built from the shape of its embedding table. Raises
    InputError if config.json cannot be read, or if a static model has anything but one matrix.
    """
    encoder_folder = transformer_folder(folder)
    if not is_static_model(folder):
        return read_json(encoder_folder / "config.json")
    files = WeightFiles(encoder_folder)
    shapes = [tuple(tensor.shape) for tensor in files.read_tensors(files.names).values()]
    if len(shapes) != 1 or len(shapes[0]) != 2:
        expected = f"a {STATIC_EMBEDDING} has one, embedding.weight, of words by dimensions"
        raise InputError(f"{files.path} holds tensors of shapes {shapes}: {expected}")
    return {"model_type": "static", "vocab_size": shapes[0][0], "hidden_size": shapes[0][1]}
