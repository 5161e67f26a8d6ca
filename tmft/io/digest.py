"""Digests of the content of files, which show whether a file has changed."""

import hashlib
import os
import stat
from functools import cache
from pathlib import Path
from typing import NamedTuple

from tmft.errors import InputError, reading

DIGEST_LENGTH = 32  # hexadecimal digits


class FileState(NamedTuple):
    """What changes when a file is written or replaced: its size in bytes, time of change and inode."""

    size: int
    modified: int
    inode: int


def file_state(path: Path) -> FileState | None:
    """Return the state of a regular file; None if there is none at this path.

    Raises InputError if a folder on the way may not be entered: the file may well be there.
    """
    try:
        state = os.stat(path)
    except (FileNotFoundError, NotADirectoryError, ValueError):  # ValueError: the path has a zero byte
        return None
    except OSError as error:
        raise InputError(
            f"{str(path)[-200:]} cannot be opened ({error.strerror}): check the path, and the permissions of "
            "its folders"
        ) from None
    is_regular = stat.S_ISREG(state.st_mode)
    return FileState(state.st_size, state.st_mtime_ns, state.st_ino) if is_regular else None


def file_digest(path: Path) -> str:
    """Return the SHA-256 of the whole content of a file, its first DIGEST_LENGTH hexadecimal digits."""
    with reading(path, "check the file"):
        state = os.stat(path)
        return cached_digest(path.absolute(), FileState(state.st_size, state.st_mtime_ns, state.st_ino))


@cache  # the runs of a sweep start from the same files
def cached_digest(path: Path, state: FileState) -> str:
    """Return the digest of a file, which is read again only if its state is another one."""
    with open(path, "rb", buffering=0) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:DIGEST_LENGTH]
