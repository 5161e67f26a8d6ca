"""Check the values in a JSON file of unknown origin, and the paths that it contains."""

from pathlib import Path
from typing import Any, TypeGuard

from tmft.errors import InputError, short_repr

TYPE_NAMES: dict[type[Any], str] = {
    str: "a text",
    dict: "an object",
    bool: "true or false",
    int: "a whole number",
    list: "a list",
}
MAX_NAME_LENGTH = 200


def get_typed(content: dict[str, Any], key: str, kind: type[Any]) -> Any:
    """Return content[key], of type `kind`; None if the key is absent or its value is null.

    Raises TypeError if the value has another type, or is a string that cannot be written in UTF-8.
    """
    value = content.get(key)
    if value is None or type(value) is kind and (kind is not str or is_utf8_string(value)):
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
