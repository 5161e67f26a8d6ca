"""Checked access to the values of a JSON file that a stranger may have written, and to the paths it names."""

from pathlib import Path

from tmft.errors import InputError, short_repr

TYPE_NAMES = {str: "a text", dict: "an object", bool: "true or false", int: "a whole number", list: "a list"}
MAX_NAME_LENGTH = 200


def typed_value(content: dict, key: str, kind: type, path: Path):
    """Return content[key], which must be of the type `kind`; None if the key is absent or its value is null.

    path: the file that the content comes from, for the message. Raises InputError if the value has another
    type, or is a string that cannot be written in UTF-8.
    """
    value = content.get(key)
    if value is None or type(value) is kind and (kind is not str or is_utf8_string(value)):
        return value
    raise InputError(f"{path} has {key} {short_repr(value)}: expected {TYPE_NAMES[kind]}")


def is_utf8_string(value: object) -> bool:
    """Return whether the value is a str without surrogates, so that it can be encoded in UTF-8."""
    return isinstance(value, str) and not any("\ud800" <= char <= "\udfff" for char in value)


def is_plain_name(name: str) -> bool:
    """Return whether this is the name of a file or folder, not a path that could lead out of its folder."""
    is_one_part = Path(name).name == name and name not in ("", "..")
    return is_one_part and name.isprintable() and len(name) < MAX_NAME_LENGTH


def check_symlink(path: Path, folder: Path) -> None:
    """Raise InputError if `path`, which a downloaded file names, is a symlink that leads out of its folder.

    In the cache of huggingface-hub all files are links from snapshots/COMMIT into the folder of the
    repository; these are allowed.
    """
    home = folder.resolve()
    cache = (commit.parent.parent for commit in (home, home.parent) if commit.parent.name == "snapshots")
    if not path.resolve().is_relative_to(next(cache, home)):
        raise InputError(f"{path} is a link out of its folder: refused; put there what it leads to")
