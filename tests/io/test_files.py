"""What is in a folder that may not be entered is not called missing, and what is absent is."""

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import ALONE

from tmft.checkpoints.model_folder import ModelFolder
from tmft.data import read_examples
from tmft.datasets.releases import RELEASES
from tmft.datasets.task_lookup import get_task
from tmft.errors import InputError
from tmft.io.files import is_file, is_folder, matching_paths
from tmft.io.text import read_table
from tmft.runs.result_json import read_result
from tmft.sentence_encoder import SentenceEncoder
from tmft.tasks import Task
from tmft.training.checkpointing import TrainingCheckpoint

NOBODY = 65534  # a user without rights; root may enter every folder


@pytest.fixture
def closed():
    """A folder that this process may not enter, in one that it may. Root becomes another user meanwhile."""
    place = Path(tempfile.mkdtemp())
    place.chmod(0o755)
    folder = place / "closed"
    (folder / "inner").mkdir(parents=True)
    folder.chmod(0)
    user = os.geteuid()
    if user == 0:
        os.seteuid(NOBODY)
    yield folder
    if user == 0:
        os.seteuid(0)
    folder.chmod(0o755)
    shutil.rmtree(place)


READERS: dict[str, Callable[[Path], object]] = {
    "is_file": lambda folder: is_file(folder / "a"),
    "is_folder": lambda folder: is_folder(folder / "inner"),
    "matching_paths": lambda folder: matching_paths(folder, "*.tsv"),
    "read_table": lambda folder: list(read_table(folder / "a.tsv", ["a"])),
    "read_examples": lambda folder: read_examples(Task(str(folder / "{split}.tsv")), "dev"),
    "get_task": lambda folder: get_task("stsb", data=str(folder)),
    "read_result": lambda folder: read_result(folder / "inner"),
    "TrainingCheckpoint": lambda folder: TrainingCheckpoint(folder / "state.pt", {}, ALONE),
    "from_pretrained": SentenceEncoder.from_pretrained,
    "checkpoint_digests": lambda folder: ModelFolder(folder).digests(),
    "read_duplicates": lambda folder: RELEASES["quora-pairs"].read(folder / "a.tsv"),
}


@pytest.mark.parametrize("name", READERS)
def test_what_is_in_a_folder_that_may_not_be_entered_is_not_called_missing(name, closed):
    with pytest.raises((InputError, PermissionError), match="Permission denied"):
        READERS[name](closed)


def test_what_is_absent_is_no_file_and_no_folder(tmp_path):
    (tmp_path / "a.tsv").write_text("")
    assert not is_file(tmp_path / "a") and not is_folder(tmp_path / "a") and not is_file(tmp_path)
    assert not is_file(tmp_path / "a.tsv/b") and is_folder(tmp_path) and not is_folder(tmp_path / "a.tsv")
    assert matching_paths(tmp_path / "a", "*") == matching_paths(tmp_path / "a.tsv", "*") == []
    (tmp_path / "b.tsv").write_text("")
    (tmp_path / "b.txt").write_text("")
    assert [path.name for path in matching_paths(tmp_path, "*.tsv")] == ["a.tsv", "b.tsv"]
