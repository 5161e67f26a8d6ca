"""What a command line says of data becomes a task that fits together, and files that are there."""

import gzip
import re
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from conftest import PAIRS

import cka
import evaluate
import tmft.data
import tmft.datasets.parse_pairs
import tmft.datasets.releases
import tmft.datasets.task_lookup
import train
from tmft.data import SPLITS, TASKS, Task, read_examples
from tmft.datasets.releases import RELEASES, Release, get
from tmft.datasets.task_lookup import check_task, get_task, read_sentences, read_split
from tmft.errors import InputError

# ----------------------------------------------------------------------------------------------- get_task


@pytest.fixture(autouse=True)
def online(monkeypatch):
    """What is fetched here comes from this machine."""
    monkeypatch.setattr(tmft.datasets.releases, "is_offline", lambda: False)


def test_a_name_alone_is_its_row():
    assert all(get_task(name) == task for name, task in TASKS.items())


def test_a_folder_with_splits_takes_the_place_of_the_tasks_files(tiny_data):
    task = get_task("stsb", data=str(tiny_data))
    assert [len(read_examples(task, split)) for split in SPLITS] == [3, 3, 3]
    assert task.objective == TASKS["stsb"].objective


def test_a_folder_without_splits_is_of_subsets_to_test_on(tmp_path):
    for name, line in zip("ba", PAIRS[:2], strict=True):
        (tmp_path / f"{name}.tsv").write_text(f"sentence1\tsentence2\tscore\n{line}\n")
    task = get_task("stsb", data=str(tmp_path))
    assert read_examples(task, "test").subsets == {"a": slice(0, 1), "b": slice(1, 2)}
    with pytest.raises(InputError, match="no dev split .*this task has test data only"):
        read_examples(task, "dev")


def test_a_folder_of_task_folders_keeps_the_rest_of_the_path(tmp_path):
    assert get_task("sickr", data_root=str(tmp_path)).files == f"{tmp_path}/sick/{{split}}.tsv"
    assert get_task("sts13", data_root=str(tmp_path)).files == f"{tmp_path}/sts13/*.tsv"


def test_objective_metric_and_range_take_the_place_of_the_rows():
    task = get_task("mrpc", objective="softmax", metric="accuracy")
    assert (task.objective, task.metric, task.label) == ("softmax", "accuracy", "label")
    task = get_task("stsb", score_range=(1, 7), metric="pearson")
    assert (task.min_score, task.max_score, task.metric) == (1, 7, "pearson")
    assert TASKS["stsb"].max_score == 5.0  # the table itself stays


MISTAKES = [
    (["stbs"], {}, "no task 'stbs': choose from stsb, .*; did you mean stsb?"),
    (["stsb"], {"data": "no/folder"}, "no folder no/folder: data names a folder of canonical TSV files"),
    (["stsb"], {"score_range": (5, 1)}, "score_range 5 1: the first number must be the smaller one"),
    (["mrpc"], {"score_range": (0, 1)}, "score_range 0 1: task mrpc has classes, leave it out"),
    (["stsb"], {"objective": "cosine_mze"}, "no objective 'cosine_mze': .*; did you mean cosine_mse?"),
    (["stsb"], {"metric": "spearmann"}, "no metric 'spearmann': .*; did you mean spearman?"),
    (["stsb"], {"objective": "softmax"}, "objective softmax: the task has scores, not classes"),
    (["sicke"], {"objective": "cosine_mse"}, "objective cosine_mse: a cosine cannot tell 3 classes"),
    (["stsb"], {"metric": "f1"}, "metric f1: with objective cosine_mse .* choose spearman or pearson$"),
    (["mrpc"], {"metric": "accuracy"}, "metric accuracy: .* choose spearman or pearson or f1$"),
    (["mrpc"], {"objective": "softmax"}, "metric f1: with objective softmax .* choose f1_macro or accuracy$"),
    (["sicke"], {"metric": "spearman"}, "metric spearman: .* choose f1_macro or accuracy$"),
]


@pytest.mark.parametrize(("names", "changes", "message"), MISTAKES, ids=[message for *_, message in MISTAKES])
def test_what_does_not_go_together_is_one_line(names, changes, message):
    with pytest.raises(InputError, match=message) as error:
        get_task(*names, **changes)
    assert "\n" not in str(error.value) and "--" not in str(error.value)


def test_a_command_says_it_of_its_options():
    with pytest.raises(InputError) as error:
        get_task("stsb", score_range=(5, 1))
    assert error.value.of_command().startswith("--score-range 5 1: ")
    with pytest.raises(InputError) as error:
        get_task("stsb", metric="f1")
    assert error.value.of_command().startswith("--metric f1: with --objective cosine_mse ")


def test_every_row_of_tasks_fits_together():
    for task in TASKS.values():
        check_task(task)


def test_two_classes_can_be_told_by_a_cosine_or_by_a_head():
    classes = {"no": 0, "yes": 1}
    check_task(Task("x/{split}.tsv", classes=classes, objective="cosine_bce", metric="f1"))
    check_task(Task("x/{split}.tsv", classes=classes, objective="softmax", metric="f1_macro"))


# ---------------------------------------------------------------------------------- data that is not there


@pytest.fixture
def published(tmp_path, monkeypatch) -> Path:
    """An empty data folder, and a small release of stsb at an address."""
    lines = ["split\tscore\tsentence1\tsentence2"]
    for split in SPLITS:
        for line in PAIRS:
            *sentences, score = line.split("\t")
            lines.append("\t".join([split, score, *sentences]))
    release = tmp_path / "stsbenchmark.tsv.gz"
    release.write_bytes(gzip.compress("\n".join(lines).encode()))
    data = tmp_path / "data"
    monkeypatch.setitem(RELEASES, "stsb", Release(RELEASES["stsb"].read, {}, (release.as_uri(),)))
    monkeypatch.setattr(tmft.datasets.parse_pairs, "SHA256", {})
    monkeypatch.setattr(tmft.data, "DATA_FOLDER", data)
    monkeypatch.setattr(tmft.datasets.task_lookup, "DATA_FOLDER", data)
    monkeypatch.setattr(tmft.datasets.task_lookup, "get", partial(get, root=data))
    return data


def test_a_split_that_is_absent_is_fetched_once_and_this_is_said(published, capsys):
    task = get_task("stsb")
    assert [len(read_split(task, split)) for split in SPLITS] == [3, 3, 3]
    first, second = capsys.readouterr().out.splitlines()
    assert first == f"{published / 'stsb'} is absent: fetching the official release"
    assert second == f"wrote {published / 'stsb'} (train 3, dev 3, test 3 pairs)"


def test_a_set_in_a_folder_of_several_is_fetched_with_them(published, tmp_path, monkeypatch, capsys):
    files = [url.rpartition("/")[2] for url in RELEASES["clustering"].urls]
    for number, file in enumerate(files):
        (tmp_path / file).write_text(f"7\ta man {number}\n9\t\n")
    here = tuple((tmp_path / file).as_uri() for file in files)
    monkeypatch.setitem(RELEASES, "clustering", replace(RELEASES["clustering"], sizes={}, urls=here))
    first, last = (read_split(get_task(name), "test") for name in ("agnews", "tweet"))
    assert (first.texts, first.labels) == ((["a man 0", "."],), ["7", "9"])
    assert last.texts == (["a man 5", "."],)
    assert capsys.readouterr().out.count("is absent: fetching the official release") == 1


def run_train(checkpoint, *data):
    where = checkpoint.parent / "runs"
    train.main(["--ckpt", str(checkpoint), "--runs", str(where), "--epochs", "1", *data])


def run_evaluate(checkpoint, *data):
    evaluate.main([str(checkpoint), *data])


def run_cka(checkpoint, *data):
    cka.main([str(checkpoint), str(checkpoint), *data])


COMMANDS = [run_train, run_evaluate, run_cka]


@pytest.mark.parametrize("run", COMMANDS)
def test_each_command_fetches_what_is_absent(run, published, tiny_folder, capsys):
    run(tiny_folder)
    assert capsys.readouterr().out.count("is absent: fetching the official release") == 1
    assert sorted(path.name for path in (published / "stsb").iterdir()) == [
        "dev.tsv",
        "test.tsv",
        "train.tsv",
    ]


@pytest.mark.parametrize("run", COMMANDS)
def test_no_command_fetches_what_a_user_said_is_elsewhere(run, published, tiny_folder, tmp_path, capsys):
    (tmp_path / "mine").mkdir()
    with pytest.raises(InputError, match=re.escape(f"no such file ({tmp_path / 'mine' / 'stsb'}")):
        run(tiny_folder, "--data-root", str(tmp_path / "mine"))
    if run is not run_cka:  # whose --data is a file of sentences
        with pytest.raises(InputError, match=r"no such file \(|this task has test data only"):
            run(tiny_folder, "--data", str(tmp_path / "mine"))
    assert "fetching" not in capsys.readouterr().out and not published.exists()


def test_a_task_without_an_address_is_not_fetched(published, capsys):
    with pytest.raises(
        InputError, match=r"no such file \(.*sts13.*\): get it with data/get_data.py, or name"
    ):
        read_split(get_task("sts13"), "test")
    assert not capsys.readouterr().out


def test_what_is_there_is_read_as_it_is(published, capsys):
    (published / "stsb").mkdir(parents=True)
    with pytest.raises(InputError, match="no such file"):  # a folder that is not whole is the user's
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
        ("sentence2\tscore\none\t1\n", ["one"]),
        ("\ufeffone\ttwo\r\n\n  \nthree\n", ["one\ttwo", "three"]),
        ("a sentence1 in a line\nsecond\u2028half\n", ["a sentence1 in a line", "second\u2028half"]),
    ],
    ids=["pairs", "alone", "one side", "lines", "lines that look odd"],
)
def test_sentences_from_a_table_or_from_lines(content, sentences, tmp_path):
    (tmp_path / "file").write_bytes(content.encode())
    assert read_sentences(tmp_path / "file") == sentences


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"no sentences \(.*file\): give a TSV file, or a text with one sentence per line"),
        (b"sentence1\tsentence2\n", "no sentences "),
        (b"sentence1\tsentence2\na\tb\tc\n", r"3 fields instead of 2 \(.*file, line 2\)"),
        (b"sentence1\tsentence2\na\t \n", r"empty sentence \(.*file\): fill it in or drop the line"),
        (b"\xff\xfe\x00", r"cannot be read as UTF-8 text: .* \(.*file\)"),
    ],
)
def test_a_file_without_sentences_is_one_line(content, message, tmp_path):
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(InputError, match=message) as error:
        read_sentences(tmp_path / "file")
    assert "\n" not in str(error.value)


def test_a_lone_carriage_return_does_not_end_a_sentence(tmp_path):
    (tmp_path / "text.txt").write_bytes(b"a man\rplays\r\n\nmusic\n")
    assert read_sentences(tmp_path / "text.txt") == ["a man\rplays", "music"]
