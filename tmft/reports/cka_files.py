"""CKA of pairs of checkpoints, read from the JSON files that `cka.py --json` has written."""

from pathlib import Path
from typing import Any

from tmft.errors import InputError
from tmft.io.atomic import read_json
from tmft.io.files import is_file
from tmft.runs.result_schema import RESULT_FILE, TEXT, Rule, is_number, validate

MAX_CKA_FILE, MAX_LAYERS = 2**22, 200  # bytes of a file, layers of a checkpoint
CKA_VALUE = Rule("a number from -1 to 1", lambda value: is_number(value) and abs(value) <= 1.001)
PAIR: dict[str, Any] = {"a": TEXT, "b": TEXT, "by_layer": [CKA_VALUE], "matrix": [[CKA_VALUE]]}


def read_cka_files(folder: Path) -> list[dict[str, Any]]:
    """Return the pairs of all files of CKA below a folder, sorted by path; other JSON files are skipped.

    Each pair is a dict with the keys "a", "b", "by_layer" and perhaps "matrix" and "debiased", as cka.py
    writes it, and with "sentences" and "source" of its file. Raises InputError if a file that has pairs has
    values of another kind.
    """
    pairs = []
    for path in sorted(folder.glob("**/*.json")):
        if path.name == RESULT_FILE or not is_file(path) or path.stat().st_size > MAX_CKA_FILE:
            continue
        try:
            content = read_json(path)
        except InputError:
            continue  # not a file of ours
        if not (isinstance(content.get("pairs"), list) and "pooling" in content):
            continue
        for pair in validate(content["pairs"], [PAIR], path, ("pairs",)):
            matrix = pair.get("matrix", [[]])
            if not 0 < len(pair["by_layer"]) <= MAX_LAYERS or len({len(row) for row in matrix}) != 1:
                raise InputError(f"{path} has a table of CKA without a fixed number of layers: restore it")
            pairs.append(pair | {"sentences": content.get("sentences"), "source": content.get("source")})
    return pairs
