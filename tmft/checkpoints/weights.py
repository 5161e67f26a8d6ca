"""Read the weights of a checkpoint: first the names of all tensors, then only the tensors that are needed.

A checkpoint may come from anybody, so no code in it is ever executed. Tensors are read from safetensors
files, or from .bin files of PyTorch, which are unpickled with torch's weights_only=True.
"""

import pickle
import zipfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from tmft.checkpoints.compact import LAYOUT_KEY, CompactFile
from tmft.errors import InputError, short_repr
from tmft.io.files import is_plain_name, reading

# Types in which the weights of an encoder can be held in memory and saved.
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
# Tensors with more rows than this are not checked for nan and inf: they are tables of word embeddings.
MAX_CHECKED_ROWS = 20_000
# After converting this number of bytes a file is opened anew, which frees the memory for reading them.
MAX_MAPPED_BYTES = 2**27
# If a folder has several of these files, the first one is read.
WEIGHT_FILES = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)


def parse_dtype(dtype: str | torch.dtype) -> torch.dtype | None:
    """Return the torch.dtype that is meant by a dtype or its name; None for "auto", the dtype of the file.

    Raises InputError for everything but "auto" and the names and values of DTYPES.
    """
    if dtype == "auto":
        return None
    if isinstance(dtype, torch.dtype) and dtype in DTYPES.values():
        return dtype
    if not isinstance(dtype, str) or dtype not in DTYPES:
        names = ", ".join(["auto", *DTYPES])
        raise InputError(f"dtype {short_repr(dtype)}: choose one of {names}", "dtype")
    return DTYPES[dtype]


class WeightFiles:
    """The tensors of a checkpoint, in one file or in several; they are read when read_tensors is called.

    path: the file with the weights, or the index that lists several files (shards).
    index: {name of a tensor: name of its file, beside `path`}, see parse_index; {} for one file.

    Its attributes are names, the names of all tensors, and files, all files that they are read from, with the
    index.
    """

    def __init__(self, path: Path, index: dict[str, str]):
        self.path = path
        self.files = [path, *(path.parent / shard for shard in dict.fromkeys(index.values()))]
        self.opened: dict[Path, safe_open | CompactFile] = {}  # files whose tensors were not yet read
        self.bins = {file: read_bin(file) for file in self.files if file.suffix == ".bin"}
        if path.suffix == ".json":
            self.file_by_name = {name: path.parent / shard for name, shard in index.items()}
        elif path in self.bins:
            self.file_by_name = dict.fromkeys(self.bins[path], path)
        else:
            self.opened[path] = open_safetensors(path)
            self.file_by_name = dict.fromkeys(self.opened[path].keys(), path)
        self.names = list(self.file_by_name)

    def read_tensors(self, names: list[str]) -> dict[str, Tensor]:
        """Return {name: tensor} for these names, with the shapes and dtypes of the files.

        The tensors are memory-mapped, copy-on-write: they take memory only when they are used, and changing
        them does not change the file. Raises InputError if a tensor cannot be read, or contains nan or inf.
        """
        return dict(self.iter_tensors(names))

    def iter_tensors(
        self, names: list[str], dtype: torch.dtype | None = None
    ) -> Iterator[tuple[str, Tensor]]:
        """Yield (name, tensor) for these names, file by file; a tensor is read when it is its turn.

        dtype: convert the tensors to this dtype; None: as they are in the file. Tensors that need no
        conversion are memory-mapped, as those of read_tensors. The memory for reading the others is freed
        after MAX_MAPPED_BYTES of them, or, for .bin files, together with the WeightFiles.
        Raises InputError in the same cases as read_tensors and convert_tensor.
        """
        for name, tensor, path in self.map_tensors(names, dtype):
            check_finite_weight(tensor, name, path)
            yield name, tensor if dtype is None else convert_tensor(tensor, dtype, name, path)

    def map_tensors(
        self, names: list[str], dtype: torch.dtype | None = None
    ) -> Iterator[tuple[str, Tensor, Path]]:
        """Yield (name, tensor, its file) for these names, memory-mapped. dtype: see iter_tensors."""
        for path in sorted({self.file_by_name[name] for name in names}):
            waiting = [name for name in reversed(names) if self.file_by_name[name] == path]
            while waiting and path in self.bins:
                name = waiting.pop()
                with reading(f"{name} in {path}", "download it again"):
                    tensor = self.bins[path][name]
                yield name, tensor, path
            while waiting:
                num_converted_bytes = 0
                with self.opened.pop(path, None) or open_safetensors(path) as file:
                    while waiting and num_converted_bytes < MAX_MAPPED_BYTES:
                        name = waiting.pop()
                        with reading(f"{name} in {path}", "download it again"):
                            tensor = file.get_tensor(name)
                        if tensor.dtype != (dtype or tensor.dtype):
                            num_converted_bytes += tensor.nbytes
                        yield name, tensor, path

    def common_dtype(self, names: list[str]) -> torch.dtype:
        """Return the dtype that most elements of the tensors with these names have.

        names: as in the checkpoint. It is float32 if the dtype is not in DTYPES.
        """
        counts: Counter[torch.dtype] = Counter()
        for _, tensor, _ in self.map_tensors(names):
            counts[tensor.dtype] += tensor.numel()
        [(dtype, _)] = counts.most_common(1) or [(torch.float32, 0)]
        return dtype if dtype in DTYPES.values() else torch.float32


def convert_tensor(tensor: Tensor, dtype: torch.dtype, name: str, path: Path) -> Tensor:
    """Return a weight in a dtype. A tensor that has it already is returned itself, still memory-mapped.

    Raises InputError if the tensor does not hold floating point numbers of at least 16 bits, as in quantized
    checkpoints, or if a number becomes infinite.
    """
    if not tensor.is_floating_point() or tensor.element_size() == 1:  # float8 needs scales
        raise InputError(
            f"{name} has dtype {tensor.dtype} ({path}): expected float32, float16 or bfloat16; "
            "get a checkpoint that is not quantized"
        )
    converted = tensor.to(dtype)
    if torch.finfo(dtype).max < torch.finfo(tensor.dtype).max and converted.numel():
        least, largest = converted.aminmax()
        if not (least.isfinite() and largest.isfinite()):
            raise InputError(
                f"{name} has numbers that are not finite in {dtype} ({path}): choose `dtype` float32", "dtype"
            )
    return converted


def check_finite_weight(tensor: Tensor, name: str, path: Path) -> None:
    """Raise InputError if a tensor contains nan or inf, which would make every output of the model nan.

    The sum of all elements is the fastest check, but it may overflow although all elements are finite, so a
    second check follows if it is not finite. Tensors with more than MAX_CHECKED_ROWS rows are not checked: a
    check would read all word embeddings into memory, and usually few of them are needed.
    """
    is_table = tensor.ndim > 1 and len(tensor) > MAX_CHECKED_ROWS
    if tensor.is_floating_point() and tensor.element_size() > 1 and not is_table:  # torch cannot sum float8
        if not tensor.sum().isfinite() and not tensor.isfinite().all():
            raise InputError(f"{name} holds nan or inf ({path}): get a checkpoint of finite numbers")


def open_safetensors(path: Path) -> safe_open | CompactFile:
    """Return an open safetensors file; its weights may be in 4 or 8 bits, see compact.py."""
    with reading(path, "download it again"):
        file = safe_open(path, framework="pt")
        return CompactFile(file) if LAYOUT_KEY in (file.metadata() or {}) else file


def parse_index(content: dict[str, Any]) -> dict[str, str]:
    """Return {name of a tensor: name of its file} for the content of the index of several files.

    Raises KeyError if it has no weight_map, and ValueError if it names a file outside its own folder.
    """
    index: dict[str, str] = content["weight_map"]
    if outside := [file for file in index.values() if not is_plain_name(file)]:
        raise ValueError(f"it points outside its folder, to {short_repr(outside[0])}")
    return index


def read_bin(path: Path) -> dict[str, Tensor]:
    """Return the state dict in a .bin file of PyTorch, memory-mapped if its format allows it.

    No code in the file is executed. Raises InputError if the file is damaged or contains anything that is not
    a plain tensor.
    """
    with reading(path, "download it again"):
        try:
            content = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
        except pickle.UnpicklingError as error:
            if "unsupported global" not in str(error).lower():  # torch says this for all other objects
                raise
            raise InputError(
                f"{path} holds Python objects, not only tensors, and loading them could run unknown code: "
                "use a model.safetensors, or a state dict"
            ) from None
    if not isinstance(content, dict) or not all(isinstance(value, Tensor) for value in content.values()):
        raise InputError(f"{path} is not a plain state dict of tensors: save it as model.safetensors")
    return content
