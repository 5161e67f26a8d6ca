"""The weights of a checkpoint: names, and tensors when they are asked for.

A checkpoint is a stranger's file: nothing in it is ever run. Tensors come from safetensors, or from a
pytorch_model.bin that is unpickled as tensors only.
"""

import pickle
import zipfile
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from tmft.errors import InputError
from tmft.io.atomic import read_json, reason
from tmft.io.json_values import check_link, is_inside

LOOKED_UP = 5_000_000  # numbers: what is larger is a table of words; no layer of a base model is
# In order of preference.
WEIGHT_FILES = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin")


def weight_file(folder: Path, where: str | Path) -> Path:
    """The first of WEIGHT_FILES that a folder has; InputError if none. where: what the user calls it."""
    for name in WEIGHT_FILES:
        if (folder / name).is_file():
            return folder / name
    raise InputError(f"no weights in {where}: expected one of {', '.join(WEIGHT_FILES)}")


class WeightFiles:
    """Names and tensors of a checkpoint, in whatever files they are; a tensor is read when asked for."""

    def __init__(self, folder: Path):
        self.path = weight_file(folder, folder)
        if self.path.suffix == ".bin":
            self.tensors = read_bin(self.path)
            self.names = list(self.tensors)
        elif self.path.suffix == ".json":
            index = read_index(self.path)
            self.file_of = {name: folder / shard for shard, names in index.items() for name in names}
            self.names = list(self.file_of)
            for shard in index:
                check_link(folder / shard, folder)
        else:
            self.file_of = dict.fromkeys(open_safetensors(self.path).keys(), self.path)
            self.names = list(self.file_of)

    def read(self, wanted: list[str]) -> dict[str, Tensor]:
        """The wanted tensors, memory-mapped, copy-on-write. Raises InputError if a number is not finite."""
        if self.path.suffix == ".bin":
            return {name: finite(self.tensors[name], name, self.path) for name in wanted}
        tensors = {}
        for path in sorted({self.file_of[name] for name in wanted}):
            with open_safetensors(path) as file:
                for name in wanted:
                    if self.file_of[name] == path:
                        try:
                            tensors[name] = finite(file.get_tensor(name), name, path)
                        except SafetensorError as error:
                            raise InputError(f"{path} has no readable {name} ({reason(error)})") from None
        return tensors


def finite(tensor: Tensor, name: str, path: Path) -> Tensor:
    """The tensor, if all its numbers are finite: of others a model makes nothing else. Their sum is the
    quickest look at all of them; that of many large ones may be infinite, too. A large table is left
    unread: only the rows of words that occur are ever brought into memory."""
    looked_up = tensor.numel() > LOOKED_UP
    if tensor.is_floating_point() and tensor.element_size() > 1 and not looked_up:  # torch sums no bytes
        if not tensor.sum().isfinite() and not tensor.isfinite().all():
            raise InputError(f"{name} holds nan or inf ({path}): get a checkpoint of finite numbers")
    return tensor


def open_safetensors(path: Path):
    try:
        return safe_open(path, framework="pt")
    except FileNotFoundError:
        raise InputError(f"{path} is missing: download the checkpoint again") from None
    except (SafetensorError, OSError) as error:
        raise InputError(f"{path} is cut short or damaged ({reason(error)}): download it again") from None


def read_index(path: Path) -> dict[str, list[str]]:
    """model.safetensors.index.json -> {file name: names of its tensors}"""
    weight_map = read_json(path).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(file, str) for file in weight_map.values()):
        raise InputError(f"{path} has no weight_map: restore the file")
    files: dict[str, list[str]] = {}
    for name, file in weight_map.items():
        if not is_inside(file):
            raise InputError(f"{path} points outside its folder ({file}): refused")
        files.setdefault(file, []).append(name)
    return files


def read_bin(path: Path) -> dict[str, Tensor]:
    """The state dict in a pytorch_model.bin, memory-mapped if its format allows; nothing in it is run."""
    try:
        zipped = zipfile.is_zipfile(path)
        if zipped:  # torch writes what it zips as it is
            with zipfile.ZipFile(path) as archive:
                if any(member.compress_type != zipfile.ZIP_STORED for member in archive.infolist()):
                    raise InputError(f"{path} holds compressed parts, not torch's: refused")
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=zipped)
    except InputError:
        raise
    except pickle.UnpicklingError as error:
        if "unsupported global" not in str(error).lower():  # the words for anything that is not a tensor
            raise InputError(f"{path} is cut short or damaged ({reason(error)}): download it again") from None
        raise InputError(
            f"{path} holds Python objects, not only tensors; reading it could run a stranger's code: "
            "ask for model.safetensors, or for a state dict"
        ) from None
    except Exception as error:  # torch rebuilds tensors of whatever numbers it finds
        raise InputError(f"{path} is cut short or damaged ({reason(error)}): download it again") from None
    if not isinstance(content, dict) or not all(is_plain(*entry) for entry in content.items()):
        raise InputError(f"{path} is not a plain state dict of tensors: save it as model.safetensors")
    return content


def is_plain(name: object, value: object) -> bool:
    """Whether it is a tensor whose numbers all lie in memory: not sparse, nor one number seen many times."""
    if (
        not isinstance(name, str)
        or not isinstance(value, Tensor)
        or value.layout != torch.strided
        or value.device.type != "cpu"
    ):
        return False
    return not value.is_quantized and value.nbytes <= value.untyped_storage().nbytes()
