"""Ask whether a path is a file or folder; one that cannot be looked at is an error, not a missing one.

Path.is_file raises PermissionError for a folder that may not be entered, or says False (from Python 3.14 on),
and both would lead to a wrong message: the file may well be there.
"""

import os
import stat
from fnmatch import fnmatchcase
from pathlib import Path

from tmft.errors import InputError


def file_mode(path: Path) -> int:
    """Return st_mode of a file or folder, of what a link leads to; 0 if there is none.

    Raises InputError if a folder on the way may not be entered, a name is too long, or links form a circle.
    """
    try:
        return os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError, ValueError):  # ValueError: the path has a zero byte
        return 0
    except OSError as error:
        raise InputError(
            f"{str(path)[-200:]} cannot be opened ({error.strerror}): check the path, and the permissions of "
            "its folders"
        ) from None


def is_file(path: Path) -> bool:
    """Return whether a path is an ordinary file. Raises InputError as file_mode does."""
    return stat.S_ISREG(file_mode(path))


def is_folder(path: Path) -> bool:
    """Return whether a path is a folder. Raises InputError as file_mode does."""
    return stat.S_ISDIR(file_mode(path))


def matching_paths(folder: Path, pattern: str) -> list[Path]:
    """Return the paths of the entries of a folder whose names match a pattern such as *.tsv, sorted.

    There are none if there is no such folder. Raises InputError if the folder may not be read: Path.glob says
    then that nothing is in it.
    """
    if not is_folder(folder):
        return []
    try:
        names = os.listdir(folder)
    except OSError as error:
        raise InputError(f"{folder} cannot be read ({error.strerror}): check its permissions") from None
    return sorted(folder / name for name in names if fnmatchcase(name, pattern))
