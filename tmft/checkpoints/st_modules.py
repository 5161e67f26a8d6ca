"""Where in its folder a checkpoint's own files are: sentence-transformers may keep them in a module."""

from pathlib import Path

from tmft.checkpoints.weights import WEIGHT_FILES, WeightFiles
from tmft.errors import InputError, short
from tmft.io.atomic import read_json
from tmft.io.json_values import check_link, is_inside, value_of

STATIC = "StaticEmbedding"


def modules_of(folder: Path) -> list[tuple[str, str]]:
    """Kind and folder of each module of modules.json, in order; "" is the folder itself.

    Raises InputError if one is elsewhere than there or directly below."""
    said, modules = folder / "modules.json", []
    for entry in read_json(said, list) if said.is_file() else []:
        if not isinstance(entry, dict):
            raise InputError(f"{said} lists {short(entry)}: expected objects with a type and a path")
        kind, path = (value_of(entry, key, str, said) or "" for key in ("type", "path"))
        kind, path = kind.rpartition(".")[2], "" if path == "." else path
        if path and not is_inside(path):
            raise InputError(f"{said} has a {kind} in {short(path)}: expected a folder directly below")
        check_link(folder / path, folder)
        modules.append((kind, path))
    return modules


def home_of(folder: Path) -> Path:
    """The folder of config, weights and tokenizer: `folder`, or that of its first module below it.

    Old versions of sentence-transformers have another config.json above, with their own version in it.
    """
    kind, path = next(iter(modules_of(folder)), ("", ""))
    if not path or kind not in ("Transformer", STATIC) or has_weights(folder):
        return folder
    above = read_json(folder / "config.json") if (folder / "config.json").is_file() else {}
    return folder if above.keys() & {"model_type", "hidden_size", "vocab_size"} else folder / path


def has_weights(folder: Path) -> bool:
    return any((folder / name).is_file() for name in WEIGHT_FILES)


def is_static(folder: Path) -> bool:
    """Whether the model is a table of words, which says so in modules.json and mostly has no config.json."""
    return any(kind == STATIC for kind, _ in modules_of(folder)[:1])


def config_content(folder: Path) -> dict:
    """config.json; of a static table what it would say: its size."""
    home = home_of(folder)
    if not is_static(folder):
        return read_json(home / "config.json")
    files = WeightFiles(home)
    shapes = [tuple(tensor.shape) for tensor in files.read(files.names).values()]
    if len(shapes) != 1 or len(shapes[0]) != 2:
        expected = f"a {STATIC} has one, embedding.weight, of words by dimensions"
        raise InputError(f"{files.path} holds tensors of shapes {shapes}: {expected}")
    return {"model_type": "static", "vocab_size": shapes[0][0], "hidden_size": shapes[0][1]}
