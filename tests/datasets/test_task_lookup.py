"""Tasks are found by name and changed by arguments; their files are downloaded if absent and read."""

import gzip
import json
import re
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from conftest import PAIRS

import cka
import evaluate
import tmft.data
import tmft.datasets.download
import tmft.datasets.task_lookup
import train
from tmft.data import SPLITS, read_examples
from tmft.datasets.download import download_dataset
from tmft.datasets.readers import SHA256
from tmft.datasets.releases import RELEASES
from tmft.datasets.task_lookup import (
    get_task,
    read_all_splits,
    read_available_split,
    read_split,
)
from tmft.errors import InputError
from tmft.io.text import read_sentences
from tmft.tasks import TASKS

# ----------------------------------------------------------------------------------------------- get_task


@pytest.fixture(autouse=True)
def online(monkeypatch):
    """Downloads of these tests come from this machine, so HF_HUB_OFFLINE must not forbid them."""
    monkeypatch.setattr(tmft.datasets.download, "is_offline", lambda: False)


def test_a_folder_with_splits_replaces_the_files_of_the_task(tiny_data):
    task = get_task("stsb", data=str(tiny_data))
    assert [len(read_examples(task, split)) for split in SPLITS] == [3, 3, 3]
    assert task.objective == TASKS["stsb"].objective


def test_data_root_replaces_only_the_data_folder(tmp_path):
    assert get_task("sickr", data_root=str(tmp_path)).files == f"{tmp_path}/sick/{{split}}.tsv"
    assert get_task("sts13", data_root=str(tmp_path)).files == f"{tmp_path}/sts13/*.tsv"


def test_objective_metric_and_range_replace_those_of_the_entry():
    task = get_task("mrpc", objective="softmax", selection_metric="accuracy")
    assert (task.objective, task.metric, task.label) == ("softmax", "accuracy", "label")
    task = get_task("stsb", score_range=(1, 7), selection_metric="pearson")
    assert (task.min_score, task.max_score, task.metric) == (1, 7, "pearson")
    assert TASKS["stsb"].max_score == 5.0  # the entry itself is unchanged


# fmt: off
MISTAKES = [  # task, what is changed in it, words of the message
    ("stbs", {}, "no task 'stbs'; did you mean stsb. The tasks are "),
    ("stsb", {"data": "no/folder"}, "no folder no/folder: data names a folder of TSV files"),
    ("mrpc", {"score_range": (0, 1)}, "score_range 0 1: task mrpc has classes, not scores: remove it"),
    ("stsb", {"objective": "softmax"},
     "objective softmax predicts classes, but the task has scores: choose one for scores"),
    ("sicke", {"objective": "cosine_mse"},
     "objective cosine_mse predicts one number, which cannot separate 3 classes: choose softmax"),
    ("stsb", {"selection_metric": "f1"},
     "f1 does not fit objective cosine_mse .*: choose spearman or pearson$"),
    ("mrpc", {"objective": "softmax"},
     "f1 does not fit objective softmax .*: choose f1_macro or accuracy$"),
    ("stsb", {"objective_args": {"temperature": 0.1}},
     "temperature has no effect with objective cosine_mse: remove it"),
    ("quora-pairs", {"objective": "cosine_mse"},
     "objective cosine_mse needs labels, but the task has none: choose multiple_negatives_ranking"),
    ("nli", {"objective": "cosine_mse"}, "objective cosine_mse takes 2 texts, but the task has 3: choose"),
    ("distillation", {}, "objective distillation: name a teacher and a text with sentences"),
]
# fmt: on


@pytest.mark.parametrize(("task", "changes", "message"), MISTAKES, ids=[message for *_, message in MISTAKES])
def test_arguments_that_do_not_fit_are_one_line(task, changes, message):
    with pytest.raises(InputError, match=message) as error:
        get_task(task, **changes)
    assert "\n" not in str(error.value) and "--" not in str(error.value)


# ------------------------------------------------------------------------------------ data that are absent


@pytest.fixture
def published(tmp_path, monkeypatch) -> Path:
    """An empty data folder, and a small release of stsb that can be downloaded."""
    lines = ["split\tscore\tsentence1\tsentence2"]
    for split in SPLITS:
        for line in PAIRS:
            *sentences, score = line.split("\t")
            lines.append("\t".join([split, score, *sentences]))
    release = tmp_path / "stsbenchmark.tsv.gz"
    release.write_bytes(gzip.compress("\n".join(lines).encode()))
    data = tmp_path / "data"
    monkeypatch.setitem(RELEASES, "stsb", replace(RELEASES["stsb"], sizes={}, urls=(release.as_uri(),)))
    for name in list(SHA256):
        monkeypatch.delitem(SHA256, name)
    monkeypatch.setattr(tmft.data, "DATA_FOLDER", data)
    monkeypatch.setattr(tmft.datasets.task_lookup, "DATA_FOLDER", data)
    monkeypatch.setattr(tmft.datasets.task_lookup, "download_dataset", partial(download_dataset, root=data))
    return data


def test_an_absent_data_set_is_downloaded_once_with_a_message(published, capsys):
    task = get_task("stsb")
    assert [len(read_split(task, split)) for split in SPLITS] == [3, 3, 3]
    first, second = capsys.readouterr().out.splitlines()
    assert first == f"{published / 'stsb'} is absent: downloading the official release"
    assert second == f"wrote {published / 'stsb'} (train 3, dev 3, test 3 pairs)"


@pytest.mark.parametrize(
    ("module", "line"),
    [(train, "--ckpt {0} --output-dir {0}/runs --epochs 1"), (evaluate, "{0}"), (cka, "{0} {0}")],
)
def test_no_command_downloads_data_whose_folder_the_user_names(
    module, line, published, tiny_folder, tmp_path, capsys
):
    (tmp_path / "mine").mkdir()
    words = line.format(tiny_folder).split()
    with pytest.raises(InputError, match=re.escape(f"no such file ({tmp_path / 'mine' / 'stsb'}")):
        module.main([*words, "--data-root", str(tmp_path / "mine")])
    if module is not cka:  # whose --data is a file of sentences
        with pytest.raises(InputError, match=r"no such file \(|this task has test data only"):
            module.main([*words, "--data", str(tmp_path / "mine")])
    assert "downloading" not in capsys.readouterr().out and not published.exists()


@pytest.mark.parametrize("split", ["dev", "test"])
def test_without_a_network_the_sample_that_comes_with_tmft_is_taken(
    split, published, tiny_folder, tmp_path, monkeypatch, capsys
):
    """By cka, if no data are named; a file that is there, and wrong, is an error."""

    def offline(name):
        raise InputError(f"{name} cannot be downloaded: no network")

    monkeypatch.setattr(tmft.datasets.task_lookup, "download_dataset", offline)
    monkeypatch.setattr(tmft.datasets.task_lookup, "PACKAGE_DATA", published)
    name, task, examples = read_available_split(split)
    assert name == "sample" and task == TASKS["sample"] and len(examples) == {"dev": 105, "test": 121}[split]
    said = "stsb cannot be downloaded: no network\nin place of stsb, the task sample is taken, which comes"
    assert said in capsys.readouterr().out
    if split == "test":
        cka.main([str(tiny_folder), str(tiny_folder)])
        assert "242 sentences of sample test" in capsys.readouterr().out
    (published / "stsb").mkdir(parents=True)
    (published / "stsb" / f"{split}.tsv").write_text("wrong\n")
    with pytest.raises(InputError, match="sentence1"):
        read_available_split(split)


def test_a_task_without_an_address_is_not_downloaded(published, capsys):
    with pytest.raises(
        InputError, match=r"no such file \(.*glue/rte.*\): download it with python -m tmft data, or name"
    ):
        read_split(get_task("rte"), "test")
    assert not capsys.readouterr().out


def test_before_scored_pairs_are_downloaded_for_a_task_without_scores_it_is_said_what_for(published, capsys):
    task = get_task("nli")
    assert len(read_split(task, "dev")) == len(PAIRS)
    said, downloading, *_ = capsys.readouterr().out.splitlines()
    assert (
        said == "dev and test of this task are pairs with scores: stsb/dev.tsv (others: --data-root FOLDER)"
    )
    assert downloading.endswith("is absent: downloading the official release")
    read_split(task, "test")
    assert not capsys.readouterr().out  # the data are there now


def test_data_that_are_present_are_read_as_they_are(published, capsys):
    (published / "stsb").mkdir(parents=True)
    with pytest.raises(InputError, match="no such file"):  # an incomplete folder belongs to the user
        read_split(get_task("stsb"), "test")
    (published / "stsb" / "test.tsv").write_text(f"sentence1\tsentence2\tscore\n{PAIRS[0]}\n")
    assert len(read_split(get_task("stsb"), "test")) == 1
    assert not capsys.readouterr().out


# ------------------------------------------------------------------------------------------ read_sentences


@pytest.mark.parametrize(
    ("content", "sentences"),
    [
        ('id\tsentence1\tsentence2\n1\ta b\tc\n2\td\te "f\n', ["a b", "d", "c", 'e "f']),
        ("sentence\tlabel\r\none\t1\r\ntwo\t0\r\n", ["one", "two"]),
        ("\ufeffone\ttwo\r\n\n  \nthree\n", ["one\ttwo", "three"]),
        ("a sentence1 in a line\nsecond\u2028half\n", ["a sentence1 in a line", "second\u2028half"]),
    ],
    ids=["pairs", "alone", "lines", "lines that look odd"],
)
def test_sentences_are_read_from_a_table_or_from_lines(content, sentences, tmp_path):
    (tmp_path / "file").write_bytes(content.encode())
    assert read_sentences(tmp_path / "file") == sentences


def test_an_empty_sentence_in_a_table_is_one_line(tmp_path):
    (tmp_path / "file").write_text("sentence1\tsentence2\na\t \n")
    with pytest.raises(InputError, match=r"^empty sentence \(.*file\): fill it in or remove the line$"):
        read_sentences(tmp_path / "file")


# ------------------------------------------------------------------------------------- a part of train as dev


def write_pairs(folder, count: int, splits=("train", "test")) -> None:
    lines = [f"a man plays {n}\tthe man eats {n}\t{n % 6}" for n in range(count)]
    for split in splits:
        (folder / f"{split}.tsv").write_text("\n".join(["sentence1\tsentence2\tscore", *lines]) + "\n")


def test_a_fraction_of_train_is_kept_for_dev(tmp_path):
    write_pairs(tmp_path, 40)
    task = get_task("stsb", str(tmp_path))
    splits, again = (read_all_splits(task, 0.25)[""] for _ in range(2))
    assert {split: len(examples) for split, examples in splits.items()} == {
        "train": 30,
        "dev": 10,
        "test": 40,
    }
    assert splits["dev"] == again["dev"] and splits["train"] == again["train"]
    assert not set(splits["train"].sentences) & set(splits["dev"].sentences)
    for examples in splits.values():
        for first, second, label in zip(*examples.texts, examples.labels, strict=True):
            n = int(first.rpartition(" ")[2])
            assert (second, label) == (f"the man eats {n}", n % 6)


@pytest.mark.parametrize(
    ("splits", "fraction", "message"),
    [
        (("train", "test"), None, "no such file .*dev.tsv.*: add it; .* set dev_fraction"),
        (("train", "dev"), None, "no such file .*test.tsv.*: add it, with examples that are not in"),
        (("train", "dev", "test"), 0.1, "this task has dev data .*dev.tsv.*: remove dev_fraction"),
        ((), None, "no .tsv file in .*, but train.csv: convert it"),
    ],
)
def test_a_folder_that_lacks_a_split_is_one_line(splits, fraction, message, tmp_path):
    (tmp_path / "train.csv").write_text("sentence1,sentence2,score\n")
    write_pairs(tmp_path, 9, splits)
    with pytest.raises(InputError, match=message):
        read_all_splits(get_task("stsb", str(tmp_path)), fraction)


def test_the_command_trains_without_a_dev_file(arguments, tiny_data, tmp_path, capsys):
    (tiny_data / "dev.tsv").unlink()
    write_pairs(tiny_data, 12)
    train.main([*arguments, "--layer", "1", "--dev-fraction", "0.25"])
    assert "test spearman" in capsys.readouterr().out
    result = json.loads((tmp_path / "runs/r-layer1-seed0/result.json").read_text())
    assert result["dev"]["pairs"] == 3 and result["settings"]["dev_fraction"] == 0.25
