"""The weights of a checkpoint: their names, and the tensors when they are needed.

A checkpoint may come from anybody, so nothing in it is ever executed. Tensors are read from safetensors, or
from a pytorch_model.bin that is unpickled with torch's weights_only=True.
"""

import pickle
import zipfile
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from tmft.errors import InputError
from tmft.io.atomic import error_text, read_json
from tmft.io.json_values import check_symlink, is_plain_name

# Elements of a tensor from which on it is not checked for nan and inf: only word embeddings are that large,
# at least in models of base size.
SKIP_CHECK_ABOVE = 5_000_000
WEIGHT_FILES = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin")  # the first is read


def find_weight_file(folder: Path, name: str | Path) -> Path:
    """Return the path of the first of WEIGHT_FILES that a folder has.

    name: what the user calls the folder, for the message. Raises InputError if it has none of them.
    """
    for file_name in WEIGHT_FILES:
        if (folder / file_name).is_file():
            return folder / file_name
    raise InputError(f"no weights in {name}: expected one of {', '.join(WEIGHT_FILES)}")


class WeightFiles:
    """The tensors of a checkpoint by name, in one file or several; a tensor is read when it is needed.

    names: the names of all tensors. path: the file that was found, or the index of several, for messages.
    """

    def __init__(self, folder: Path):
        """Raises InputError if the folder has no weights, or if they are damaged."""
        self.path = find_weight_file(folder, folder)
        if self.path.suffix == ".bin":
            self.tensors = read_bin(self.path)
            self.names = list(self.tensors)
        elif self.path.suffix == ".json":
            index = read_index(self.path)
            self.file_by_name = {name: folder / shard for shard, names in index.items() for name in names}
            self.names = list(self.file_by_name)
            for shard in index:
                check_symlink(folder / shard, folder)
        else:
            self.file_by_name = dict.fromkeys(open_safetensors(self.path).keys(), self.path)
            self.names = list(self.file_by_name)

    def read_tensors(self, names: list[str]) -> dict[str, Tensor]:
        """Read the tensors with these names, memory-mapped and copy-on-write.

        Raises InputError if a tensor cannot be read, or contains nan or inf.
        """
        tensors = {}
        if self.path.suffix == ".bin":
            for name in names:
                check_finite(self.tensors[name], name, self.path)
                tensors[name] = self.tensors[name]
            return tensors
        for path in sorted({self.file_by_name[name] for name in names}):
            with open_safetensors(path) as file:
                for name in names:
                    if self.file_by_name[name] == path:
                        try:
                            tensors[name] = file.get_tensor(name)
                        except SafetensorError as error:
                            raise InputError(
                                f"{path} has no readable {name} ({error_text(error)}): download it again"
                            ) from None
                        check_finite(tensors[name], name, path)
        return tensors


def check_finite(tensor: Tensor, name: str, path: Path) -> None:
    """Raise InputError if a tensor contains nan or inf, which would make every output of the model nan.

    The sum of all elements is the fastest check; it may overflow where the elements do not, hence the second.
    Large tensors are not checked: only the word embeddings that occur in a text are ever brought into memory.
    """
    is_large = tensor.numel() > SKIP_CHECK_ABOVE
    if tensor.is_floating_point() and tensor.element_size() > 1 and not is_large:  # torch cannot sum float8
        if not tensor.sum().isfinite() and not tensor.isfinite().all():
            raise InputError(f"{name} holds nan or inf ({path}): get a checkpoint of finite numbers")


def open_safetensors(path: Path):
    """Open a safetensors file. Raises InputError if it is missing or damaged."""
    try:
        return safe_open(path, framework="pt")
    except FileNotFoundError:
        raise InputError(f"{path} is missing: download the checkpoint again") from None
    except (SafetensorError, OSError) as error:
        raise InputError(f"{path} is cut short or damaged ({error_text(error)}): download it again") from None


def read_index(path: Path) -> dict[str, list[str]]:
    """Read model.safetensors.index.json: {file name: names of the tensors in it}.

    Raises InputError if it has no weight_map, or names a file that is not in its own folder.
    """
    weight_map = read_json(path).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(file, str) for file in weight_map.values()):
        raise InputError(f"{path} has no weight_map: restore the file")
    files: dict[str, list[str]] = {}
    for name, file in weight_map.items():
        if not is_plain_name(file):
            raise InputError(f"{path} points outside its folder ({file}): refused")
        files.setdefault(file, []).append(name)
    return files


def read_bin(path: Path) -> dict[str, Tensor]:
    """Read the state dict in a pytorch_model.bin, memory-mapped if its format allows it.

    No code in the file is executed. Raises InputError if the file is damaged or holds anything but tensors.
    """
    try:
        zipped = zipfile.is_zipfile(path)
        if zipped:  # torch does not compress; a small file of zeros could become very large
            with zipfile.ZipFile(path) as archive:
                if any(member.compress_type != zipfile.ZIP_STORED for member in archive.infolist()):
                    raise InputError(f"{path} holds compressed parts, which torch does not write: refused")
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=zipped)
    except InputError:
        raise
    except pickle.UnpicklingError as error:
        if "unsupported global" not in str(error).lower():  # this is in the message for all other objects
            message = f"{path} is cut short or damaged ({error_text(error)}): download it again"
            raise InputError(message) from None
        raise InputError(
            f"{path} holds Python objects, not only tensors, and loading them could run unknown code: "
            "use a model.safetensors, or a state dict"
        ) from None
    except Exception as error:  # torch trusts the sizes in the file, so errors of many types are possible
        raise InputError(f"{path} is cut short or damaged ({error_text(error)}): download it again") from None
    if not isinstance(content, dict) or not all(is_plain_tensor(*entry) for entry in content.items()):
        raise InputError(f"{path} is not a plain state dict of tensors: save it as model.safetensors")
    return content


def is_plain_tensor(name: object, value: object) -> bool:
    """Return whether an entry of a state dict is a dense tensor on the CPU with all its elements in memory.

    Sparse and quantized tensors are not, nor one whose strides repeat elements: it could seem huge.
    """
    if (
        not isinstance(name, str)
        or not isinstance(value, Tensor)
        or value.layout != torch.strided
        or value.device.type != "cpu"
    ):
        return False
    return not value.is_quantized and value.nbytes <= value.untyped_storage().nbytes()
