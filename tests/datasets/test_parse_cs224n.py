"""The files of CS 224N: an index without a name, CSV quotes, rows without labels, a folder with only dev."""

from dataclasses import replace

import pytest

from tmft.data import read_examples
from tmft.datasets.releases import RELEASES, download_dataset
from tmft.datasets.task_lookup import get_task
from tmft.errors import InputError

QUORA = """\tid\tsentence1\tsentence2\tis_duplicate
7\taa\t\"\"\"Which?\"\" he said\"\tWhy?\t0.0
9\tbb\tA b\tC\t1.0
8\tcc\t\tD\t1.0
"""
SST = "\tid\tsentence\tsentiment\n0\taa\t A good film .\t3\n1\tbb\tBad\t0\n"
STUDENT = "0\t\tid\tsentence\n1\t0.0\tcc\tA film\n2\t1.0\tdd\tNo\n"


@pytest.fixture
def course(tmp_path):
    """A folder with the files of the course, small."""
    folder = tmp_path / "course"
    folder.mkdir()
    for split in ("train", "dev"):
        (folder / f"ids-sst-{split}.csv").write_text(SST)
        (folder / f"quora-{split}.csv").write_text(QUORA)
    (folder / "ids-sst-test-student.csv").write_text(STUDENT)
    return folder


def fetch(name, course, tmp_path, monkeypatch):
    monkeypatch.setitem(RELEASES, name, replace(RELEASES[name], sizes={}))
    download_dataset(name, str(course), tmp_path / "data")
    return get_task(name, data_root=str(tmp_path / "data"))


def test_rows_without_a_text_are_skipped(course, tmp_path, monkeypatch):
    examples = read_examples(fetch("quora", course, tmp_path, monkeypatch), "train")
    assert examples.texts == (['"Which?" he said', "A b"], ["Why?", "C"]) and examples.labels == [0, 1]
    written = (tmp_path / "data/quora/dev.tsv").read_text().splitlines()
    assert written[0] == "label\tsentence1\tsentence2\tid" and written[1].endswith("\taa")


def test_single_sentences_and_the_unlabelled_split_are_read(course, tmp_path, monkeypatch):
    task = fetch("sst5", course, tmp_path, monkeypatch)
    assert read_examples(task, "dev").texts == (["A good film .", "Bad"],)
    assert (tmp_path / "data/sst5/unlabelled.tsv").read_text() == "text\tid\nA film\tcc\nNo\tdd\n"


def test_a_lone_dev_file_is_split_into_train_dev_and_test(course, tmp_path, monkeypatch):
    (course / "quora-train.csv").unlink()
    lines = [f"{n}\tid{n}\ta {n}\tb\t{n % 2}.0" for n in range(20)]
    (course / "quora-dev.csv").write_text("\n".join([QUORA.splitlines()[0], *lines]) + "\n")
    task = fetch("quora", course, tmp_path, monkeypatch)
    splits = {split: read_examples(task, split).texts[0] for split in ("train", "dev", "test")}
    assert [len(texts) for texts in splits.values()] == [16, 2, 2]
    assert splits["dev"] == ["a 16", "a 17"] and splits["test"] == ["a 18", "a 19"]


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("quora-dev.csv", None, "has no quora-dev.csv: name the folder with the files of the course"),
        (
            "quora-dev.csv",
            "\tid\tsentence1\tlabel\n",
            "quora-dev.csv has no column sentence2: download it again",
        ),
        ("quora-train.csv", "", "quora-train.csv cannot be read .*: download it again"),
    ],
)
def test_a_damaged_file_is_one_line(file, text, message, course, tmp_path, monkeypatch):
    (course / file).unlink() if text is None else (course / file).write_text(text)
    with pytest.raises(InputError, match=message):
        fetch("quora", course, tmp_path, monkeypatch)


def test_the_real_files_are_read_completely(real_data, tmp_path, monkeypatch):
    """The first rows of Quora; the complete dev files of the other two."""
    folder = real_data / "original-formats/cs224n"
    if not folder.is_dir():
        pytest.skip("the files of the course are not available")
    (tmp_path / "files").mkdir()
    available = {"quora-dev.csv": "quora-dev.first-rows.csv"}
    for name in ("quora-dev.csv", "ids-sst-dev.csv", "sts-dev.csv"):
        (tmp_path / "files" / name).write_bytes((folder / available.get(name, name)).read_bytes())
    for name, count in (("quora", 160), ("sst5", 880), ("cs224n-sts", 690)):
        task = fetch(name, tmp_path / "files", tmp_path, monkeypatch)
        assert len(read_examples(task, "train")) == count


def test_a_label_that_is_not_a_number_is_one_line(course, tmp_path, monkeypatch):
    (course / "ids-sst-dev.csv").write_text(SST.replace("\t3\n", "\tthree\n"))
    with pytest.raises(
        InputError, match="label 'three' is not a number .*ids-sst-dev.csv.: download it again"
    ):
        fetch("sst5", course, tmp_path, monkeypatch)
