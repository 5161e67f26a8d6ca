"""fuzz.py, which is started by hand for many inputs, with a few inputs of each reader; it detects every
defect.
"""

import os
import sys
import time
from pathlib import Path

import pytest

from tmft.errors import InputError

sys.path.insert(0, str(Path(__file__).resolve().parent))

import fuzz  # noqa: E402
import readers  # noqa: E402
from readers import READERS, Reader  # noqa: E402

INPUTS = 5


@pytest.mark.parametrize("name", READERS)
def test_a_damaged_file_is_loaded_or_refused(name):
    outcomes, defects = fuzz.fuzz(READERS[name], name, INPUTS, seed=0)
    assert not defects
    assert outcomes.total() == INPUTS


@pytest.mark.parametrize("name", READERS)
def test_unchanged_files_are_loaded(name, tmp_path, monkeypatch):
    """Otherwise inputs would be refused for another reason than the change."""
    for file in list(readers.SHA256):  # as prepare_process does
        monkeypatch.delitem(readers.SHA256, file)
    fuzz.make_folder(READERS[name], tmp_path / "files")
    READERS[name].read(tmp_path / "files")


def refuse(folder: Path) -> None:
    raise InputError("a mistake (here): correct it")


def fill_memory(folder: Path) -> None:
    bytearray(8 << 30)


WRONG = {
    "KeyError": lambda folder: {}[0],
    "SystemExit": lambda folder: sys.exit(2),
    "MemoryError": fill_memory,
    "crash": lambda folder: os.abort(),
    "hang": lambda folder: time.sleep(60),
}


@pytest.mark.parametrize("kind", WRONG)
def test_an_input_that_is_neither_loaded_nor_refused_is_a_defect(kind, monkeypatch):
    monkeypatch.setattr(fuzz, "TIMEOUT", 0.5)
    reader = Reader(lambda folder: (folder / "a.txt").write_text("valid"), WRONG[kind])
    outcomes, defects = fuzz.fuzz(reader, "a", 2, 0)
    assert outcomes == {fuzz.DEFECT: 2}
    assert [line.partition(" ")[2].startswith(kind) for line in defects] == [True, True]


def test_a_refused_input_is_counted_as_refused():
    reader = Reader(lambda folder: (folder / "a.txt").write_text("valid"), refuse)
    assert fuzz.fuzz(reader, "a", 2, 0)[0] == {fuzz.REFUSED: 2}


def test_inputs_are_reproducible():
    files = {"a.json": b'{"a": [1, 2, {"b": "c"}]}', "b.txt": b"some bytes"}
    reader = Reader(lambda folder: None, lambda folder: None)
    twice = [[fuzz.change(files, reader, fuzz.Random(f"0 a {n}")) for n in range(50)] for _ in range(2)]
    assert twice[0] == twice[1]
    assert len(set(twice[0])) > 40
