"""The files of a checkpoint: find them, read tensors one at a time, write without tearing.

A checkpoint is a stranger's file: nothing in it is ever run. Tensors come from safetensors, or from a
pytorch_model.bin that is unpickled as tensors only.
"""

import json
import os
import pickle
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from tmft.errors import InputError

WEIGHT_FILES = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
)  # in order of preference
TOKENIZER_FILES = ("tokenizer.json", "vocab.txt", "spm.model", "tokenizer_config.json")


def find(where: str | os.PathLike, weights: bool = True) -> Path:
    """The folder of a checkpoint: `where` itself, or the local copy of a hub id with an optional @revision.

    Only the files that are needed are downloaded: config, tokenizer, and one set of weights, unless
    weights=False. Cache, tokens and offline mode are huggingface-hub's (HF_HOME, HF_TOKEN, HF_HUB_OFFLINE).
    Raises InputError if there is no such folder or hub id, no answer, or no config or weights in it.
    """
    folder = Path(where).expanduser()
    if not folder.is_dir():
        if folder.exists():
            raise InputError(f"{where} is a file: name the folder that holds config.json and the weights")
        from tmft.files.hub import download  # only now: its import costs 0.1 s, and a folder needs none of it

        folder = download(str(where), weights)
    if not (folder / "config.json").is_file():
        raise InputError(f"no config.json in {where}: this is not a checkpoint folder")
    if weights and not any((folder / name).is_file() for name in WEIGHT_FILES):
        raise InputError(f"no weights in {where}: expected one of {', '.join(WEIGHT_FILES)}")
    return folder


def read_json(path: Path, kind: type = dict) -> dict | list:
    """A JSON object (or list) from a file; InputError if it is no such thing."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise InputError(f"{path} cannot be read as JSON ({one_line(error)}): restore the file") from None
    if not isinstance(content, kind):
        raise InputError(f"{path} holds a {type(content).__name__}: expected a {kind.__name__}")
    return content


def one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__


class WeightFiles:
    """Names and tensors of a checkpoint, in whatever files they are; a tensor is read when asked for."""

    def __init__(self, folder: Path):
        self.path = next(folder / name for name in WEIGHT_FILES if (folder / name).is_file())
        if self.path.suffix == ".bin":
            self.tensors = read_bin(self.path)
            self.names = list(self.tensors)
        elif self.path.suffix == ".json":
            index = read_index(self.path)
            self.file_of = {name: folder / shard for shard, names in index.items() for name in names}
            self.names = list(self.file_of)
        else:
            self.file_of = dict.fromkeys(open_safetensors(self.path).keys(), self.path)
            self.names = list(self.file_of)

    def read(self, wanted: list[str]) -> dict[str, Tensor]:
        """The wanted tensors, as pages of their file that are read when touched and copied when changed."""
        if self.path.suffix == ".bin":
            return {name: self.tensors[name] for name in wanted}
        tensors = {}
        for path in sorted({self.file_of[name] for name in wanted}):
            with open_safetensors(path) as file:
                for name in wanted:
                    if self.file_of[name] == path:
                        try:
                            tensors[name] = file.get_tensor(name)
                        except SafetensorError as error:
                            raise InputError(f"{path} has no readable {name} ({one_line(error)})") from None
        return tensors


def open_safetensors(path: Path):
    try:
        return safe_open(path, framework="pt")
    except FileNotFoundError:
        raise InputError(f"{path} is missing: download the checkpoint again") from None
    except (SafetensorError, OSError) as error:
        raise InputError(f"{path} is cut short or damaged ({one_line(error)}): download it again") from None


def read_index(path: Path) -> dict[str, list[str]]:
    """model.safetensors.index.json -> {file name: names of its tensors}"""
    weight_map = read_json(path).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(file, str) for file in weight_map.values()):
        raise InputError(f"{path} has no weight_map: restore the file")
    files: dict[str, list[str]] = {}
    for name, file in weight_map.items():
        if Path(file).name != file:
            raise InputError(f"{path} points outside its folder ({file}): refused")
        files.setdefault(file, []).append(name)
    return files


def read_bin(path: Path) -> dict[str, Tensor]:
    """The state dict in a pytorch_model.bin, memory-mapped if its format allows; nothing in it is run."""
    try:
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except pickle.UnpicklingError as error:
        if "Unsupported global" not in str(error):  # the words for anything that is not a tensor
            raise InputError(
                f"{path} is cut short or damaged ({one_line(error)}): download it again"
            ) from None
        raise InputError(
            f"{path} holds Python objects, not only tensors; reading it could run a stranger's code: "
            "ask for model.safetensors, or for a state dict"
        ) from None
    except (RuntimeError, EOFError, OSError, ValueError, KeyError, AttributeError) as error:
        raise InputError(f"{path} is cut short or damaged ({one_line(error)}): download it again") from None
    if not isinstance(content, dict) or not all(isinstance(value, Tensor) for value in content.values()):
        raise InputError(f"{path} is not a plain state dict of tensors: save it as model.safetensors")
    return content


def write_file(path: Path, content: str | Callable[[Path], None]) -> None:
    """Write a file so that a crash at any moment leaves the old one or the new one, never a torn one.

    content: the text, or a function that writes to the path it is given.
    Raises InputError if it cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=".writing-") as scratch:
            new = Path(scratch) / path.name
            new.write_text("" if callable(content) else content, encoding="utf-8", newline="\n")
            mode = new.stat().st_mode  # as the umask wants it; safetensors writes for the owner's eyes only
            if callable(content):
                content(new)
                new.chmod(mode)
            with open(new, "rb+") as file:
                os.fsync(file.fileno())
            os.replace(new, path)
    except (OSError, SafetensorError) as error:
        raise InputError(f"cannot write {path} ({one_line(error)}): check space and permissions") from None
