"""Where in its folder a checkpoint's own files are: sentence-transformers may keep them in a module."""

from pathlib import Path

from tmft.errors import InputError
from tmft.files.folder import read_json
from tmft.files.weights import WEIGHT_FILES, WeightFiles

STATIC = "StaticEmbedding"


def modules_of(folder: Path) -> list[tuple[str, str]]:
    """Kind and folder of each module of modules.json, in order."""
    if not (folder / "modules.json").is_file():
        return []
    entries = read_json(folder / "modules.json", list)
    return [(str(entry.get("type")).rpartition(".")[2], str(entry.get("path"))) for entry in entries]


def is_inside(path: str) -> bool:
    """Whether this names a folder directly below, and nothing outside."""
    return Path(path).name == path and path not in ("", ".", "..")


def home_of(folder: Path) -> Path:
    """The folder of config, weights and tokenizer: `folder`, or that of its first module below it.

    Old versions of sentence-transformers have another config.json above, with their own version in it.
    """
    kind, path = next(iter(modules_of(folder)), ("", ""))
    if not is_inside(path) or kind not in ("Transformer", STATIC) or has_weights(folder):
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
