"""One value of a stranger's JSON, of the kind that it has to be; and names of what lies in a folder."""

from pathlib import Path

from tmft.errors import InputError, short

WORDS = {str: "a text", dict: "an object", bool: "true or false", int: "a whole number", list: "a list"}


def value_of(content: dict, key: str, kind: type, path: Path):
    """content[key], None if it is absent or null; path: the file that says it.

    Raises InputError if it is of another kind, or a text that no file can hold: half a character."""
    value = content.get(key)
    if value is None or type(value) is kind and (kind is not str or is_text(value)):
        return value
    raise InputError(f"{path} has {key} {short(value)}: expected {WORDS[kind]}")


def is_text(value: object) -> bool:
    """Whether it is a str that can be written in UTF-8."""
    return isinstance(value, str) and not any("\ud800" <= letter <= "\udfff" for letter in value)


def is_inside(name: str) -> bool:
    """Whether this names a file or folder directly below, and nothing outside."""
    return Path(name).name == name and name not in ("", "..") and name.isprintable() and len(name) < 200


def check_link(path: Path, folder: Path) -> None:
    """Raises InputError if what a stranger's file names in its folder is a link out of it.

    In huggingface-hub's cache all files are links, from snapshots/COMMIT into the repository's folder.
    """
    home = folder.resolve()
    cache = (commit.parent.parent for commit in (home, home.parent) if commit.parent.name == "snapshots")
    if not path.resolve().is_relative_to(next(cache, home)):
        raise InputError(f"{path} is a link out of its folder: refused; put there what it leads to")
