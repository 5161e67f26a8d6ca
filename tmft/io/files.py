"""Read files of unknown origin: what is at a path, JSON, digests, and the boundary for damaged files.

Path.is_file says False (from Python 3.14 on) for a file in a folder that may not be entered, where it may
well be. Here it is a PermissionError, which a command shows as one line.
"""

import hashlib
import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeGuard

from tmft.errors import InputError, describe_error, short_repr

TYPE_NAMES: dict[type[Any], str] = {
    str: "a text",
    dict: "an object",
    bool: "true or false",
    int: "a whole number",
    list: "a list",
}
MAX_NAME_LENGTH = 200
DIGEST_LENGTH = 32  # hexadecimal digits

PACKAGE_FOLDER = Path(__file__).resolve().parent.parent  # tmft/
CHECKOUT_DATA = PACKAGE_FOLDER.parent / "data"
IS_INSTALLED = not (CHECKOUT_DATA / "twins").is_dir()
# Folder of the data that come with the package: the sample, the twins, the scores of the paper's authors.
PACKAGE_DATA = PACKAGE_FOLDER / "shipped" if IS_INSTALLED else CHECKOUT_DATA
# Folder of the data that `tmft data` downloads: data/ of the checkout, or data/ in the current folder if the
# package is installed.
DATA_FOLDER = Path("data").absolute() if IS_INSTALLED else CHECKOUT_DATA
# The extra `torch` in pyproject.toml, but for huggingface-hub, which comes with tokenizers. With numpy and
# tokenizers alone, tmft has only `tmft encode TEXT`.
TORCH_PACKAGES = ("torch", "safetensors", "scipy")


def missing_packages(user: str) -> str:
    """Return that `user` needs those of TORCH_PACKAGES that are not installed; "" if none is missing."""
    missing = [name for name in TORCH_PACKAGES if find_spec(name) is None]
    # not tmft[torch]: tmft is on no package index, where others could take the name
    packages = " ".join(missing) if IS_INSTALLED else "-r requirements.txt"
    return f"{user} needs {', '.join(missing)}: pip install {packages}" if missing else ""


class UnsupportedError(ValueError):
    """A file is not damaged, but says something that tmft does not know or cannot do."""


@contextmanager
def reading(path: object, remedy: str = "restore the file") -> Iterator[None]:
    """Turn every error of a block that reads a file of somebody else into one InputError that names the file.

    This is the boundary for damaged files: inside it a reader takes what it needs without asking first, and
    whatever goes wrong (a missing key, a wrong type, bytes that are no text, an error of a parser) is one
    line. path: the file or folder. remedy: what the user can do.
    """
    try:
        yield
    except InputError:
        raise
    except UnsupportedError as error:
        raise InputError(f"{path}: {error}") from None
    except BaseException as error:
        # A panic in the Rust code of tokenizers is no Exception; an interrupt by the user passes.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        cause = describe_error(error)
        if isinstance(error, OSError) and str(error.filename) == str(path):  # its text names the file again
            cause = error.strerror or cause
        raise InputError(f"{path} cannot be read ({cause}): {remedy}") from None


def read_json(path: Path, kind: type[Any] = dict) -> Any:
    """Return the content of a JSON file, which has to be a dict, or of another kind."""
    with reading(path):
        content = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(content, kind):
            raise TypeError(f"it holds a {type(content).__name__}, not a {kind.__name__}")
        return content


def get_typed(content: dict[str, Any], key: str, kind: type[Any]) -> Any:
    """Return content[key], of type `kind`; None if the key is absent or its value is null.

    Raises TypeError if the value has another type.
    """
    value = content.get(key)
    if value is None or type(value) is kind:
        return value
    raise TypeError(f"{key} is {short_repr(value)}, not {TYPE_NAMES[kind]}")


def is_utf8_string(value: object) -> TypeGuard[str]:
    """Return whether a value is a str that can be encoded in UTF-8, that is, one without surrogates."""
    return isinstance(value, str) and not any("\ud800" <= char <= "\udfff" for char in value)


def is_plain_name(name: str) -> bool:
    """Return whether a text is the name of a file or folder, and not a path with several parts or "..".

    Names with characters that are not printable and names of MAX_NAME_LENGTH or more are refused as well.
    """
    is_one_part = Path(name).name == name and name not in ("", "..")
    return is_one_part and name.isprintable() and len(name) < MAX_NAME_LENGTH


def check_symlink(path: Path, folder: Path) -> None:
    """Raise InputError if `path` is a symlink that leads out of `folder`.

    path: a path in `folder` that is named in a downloaded file, which could otherwise make us read any file.
    In the cache of huggingface-hub all files are links from snapshots/COMMIT into the folder of the
    repository; these are allowed.
    """
    home = folder.resolve()
    cache = (commit.parent.parent for commit in (home, home.parent) if commit.parent.name == "snapshots")
    try:
        target = path.resolve()
    except (OSError, RuntimeError) as error:  # RuntimeError: before Python 3.13, for links in a circle
        raise InputError(
            f"{path} is a link that leads nowhere ({' '.join(str(error).split())}): put the file there"
        ) from None
    if not target.is_relative_to(next(cache, home)):
        raise InputError(f"{path} is a link out of its folder: refused; put there what it leads to")


def file_state(path: Path) -> os.stat_result | None:
    """Return the state of a file or folder, of what a link leads to; None if there is none.

    Raises OSError if a folder on the way may not be entered, a name is too long, or links form a circle.
    """
    try:
        return os.stat(path)
    except (FileNotFoundError, NotADirectoryError, ValueError):  # ValueError: the path has a zero byte
        return None


def is_file(path: Path) -> bool:
    """Return whether a path is a regular file. Raises OSError as file_state does."""
    state = file_state(path)
    return state is not None and stat.S_ISREG(state.st_mode)


def check_regular_file(path: Path) -> None:
    """Raise InputError if something else than a regular file is at a path; it may also be missing."""
    if file_state(path) and not is_file(path):
        raise InputError(f"{path} is not a regular file: name one")


def is_folder(path: Path) -> bool:
    """Return whether a path is a folder. Raises OSError as file_state does."""
    state = file_state(path)
    return state is not None and stat.S_ISDIR(state.st_mode)


def matching_paths(folder: Path, pattern: str) -> list[Path]:
    """Return the paths of the entries of a folder whose names match a pattern such as *.tsv, sorted.

    There are none if there is no such folder. Raises OSError if the folder may not be read: Path.glob says
    then that nothing is in it.
    """
    names = os.listdir(folder) if is_folder(folder) else []
    return sorted(folder / name for name in names if fnmatchcase(name, pattern))


def digest(content: str | bytes) -> str:
    """Return the SHA-256 of bytes, or of a text in UTF-8, in hexadecimal digits."""
    content = content.encode(errors="surrogatepass") if isinstance(content, str) else content
    return hashlib.sha256(content).hexdigest()


def file_digest(path: Path) -> str:
    """Return the SHA-256 of the whole content of a file, its first DIGEST_LENGTH hexadecimal digits."""
    with reading(path, "check the file"):
        state = os.stat(path)
        return cached_digest(path.absolute(), state.st_size, state.st_mtime_ns, state.st_ino)


@cache  # the runs of a sweep start from the same files
def cached_digest(path: Path, size: int, modified: int, inode: int) -> str:
    """Return the digest of a file, which is read again only if its size, time of change or inode differs."""
    with open(path, "rb", buffering=0) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:DIGEST_LENGTH]
