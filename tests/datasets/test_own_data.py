"""Tables of the user become the files that the commands read, and the report says what was found."""

import csv
import re

import pytest

from tmft.cli import data_command
from tmft.data import read_examples
from tmft.datasets.own_data import convert_tables, parse_columns
from tmft.datasets.task_lookup import get_task
from tmft.errors import InputError

NEXT = "next: python train.py --ckpt google/electra-base-discriminator --layer 9"

PAIRS = {"sentence1": "first", "sentence2": "second", "score": "similarity"}


def write_csv(path, rows, header=("first", "second", "similarity")):
    with open(path, "w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    return str(path)


@pytest.fixture
def table(tmp_path):
    rows = [(f"text {n}", f"other {n}", n % 6) for n in range(100)]
    return write_csv(tmp_path / "pairs.csv", rows)


def test_a_table_comes_out_as_the_commands_read_it(tmp_path):
    rows = [('He said "no",\tand left.', "two\nlines", "4.50"), (" Grüße ", "x;y", "0")]
    write_csv(tmp_path / "train.csv", rows)
    convert_tables([str(tmp_path / "train.csv")], PAIRS, tmp_path / "out")
    text = (tmp_path / "out/train.tsv").read_text("utf-8")
    expected = 'He said "no", and left.\ttwo lines\t4.5\nGrüße\tx;y\t0\n'
    assert text == "sentence1\tsentence2\tscore\n" + expected
    examples = read_examples(get_task("stsb", data=str(tmp_path / "out")), "train")
    assert examples.labels == [4.5, 0.0] and examples.texts[1] == ["two lines", "x;y"]


def test_a_table_of_a_german_excel_comes_out(tmp_path, capsys):
    """Windows-1252, semicolons, and a comma before the decimals."""
    path = tmp_path / "train.csv"
    path.write_bytes("first;second;similarity\nGrüße;zwei, drei;3,5\na;b;4\n".encode("cp1252"))
    command = ["convert", str(path), "--columns", ",".join("=".join(pair) for pair in PAIRS.items())]
    for options, message in [
        ([], "train.csv is not text in UTF-8 .*: name its --encoding, such as cp1252"),
        (["--encoding", "cp1252"], "score '3,5' is not a number .*: give --decimal , if the comma stands"),
        (["--encoding", "cp-none"], "train.csv cannot be read .unknown encoding: cp-none"),
        (["--decimal", ";"], "--decimal ';': choose one of ., ,"),
    ]:
        with pytest.raises(InputError) as caught:
            data_command.main([*command, *options, "--out", str(tmp_path / "out")])
        assert re.match(f"(.*/)?{message}", caught.value.as_cli_message())
    data_command.main([*command, "--encoding", "cp1252", "--decimal", ",", "--out", str(tmp_path / "out")])
    text = (tmp_path / "out/train.tsv").read_text("utf-8")
    assert text == "sentence1\tsentence2\tscore\nGrüße\tzwei, drei\t3.5\na\tb\t4\n"
    path.write_bytes(path.read_bytes().replace(b"3,5", b"1.003,5"))
    with pytest.raises(InputError, match=r"score '1.003,5' is not a number .*: correct it"):
        convert_tables([str(path)], PAIRS, encoding="cp1252", decimal=",")


def test_the_examples_are_divided_once_and_none_is_lost(table, tmp_path):
    convert_tables([table], PAIRS, tmp_path / "a", (0.8, 0.15, 0.05))
    lines = {
        split: (tmp_path / f"a/{split}.tsv").read_text("utf-8").splitlines()[1:]
        for split in ("train", "dev", "test")
    }
    assert [len(split) for split in lines.values()] == [80, 15, 5]
    assert sorted(sum(lines.values(), [])) == sorted(f"text {n}\tother {n}\t{n % 6}" for n in range(100))
    numbers = [int(line.split()[1]) for line in lines["train"]]
    assert numbers == sorted(numbers)  # in their order
    convert_tables([table], PAIRS, tmp_path / "b", (0.8, 0.15, 0.05))
    assert (tmp_path / "b/dev.tsv").read_bytes() == (tmp_path / "a/dev.tsv").read_bytes()
    convert_tables([table], PAIRS, tmp_path / "c", (0.8, 0.15, 0.05), seed=1)
    assert (tmp_path / "c/dev.tsv").read_bytes() != (tmp_path / "a/dev.tsv").read_bytes()


def test_the_report_says_what_is_worth_a_second_look(tmp_path):
    train = [("a", "b", "1"), ("B", "a ", "2"), ("a", "b", "1"), ("c\td", "e", "0.5"), ("", "x", "1")]
    train += [("y", "z", ""), ("y", "\u200b", "1")]
    test = [("b", "A", "4"), ("c d", "new", "5.5"), ("p", "q", "-2")]
    files = [write_csv(tmp_path / "1.csv", train), write_csv(tmp_path / "test.csv", test)]
    report = convert_tables([f"train={files[0]}", files[1]], PAIRS)
    assert report == [
        "train: 4 pairs; score 0.5 to 2, mean 1.125",
        "test: 3 pairs; score -2 to 5.5, mean 2.5",
        "note train: 2 left out, with an empty text",
        "note train: 1 left out, with no score or label",
        "note train: 2 pairs repeat an earlier one, 1 of them with another label",
        "note test: also in train are 1 of its 3 pairs, and 3 of its 6 distinct texts",
    ]


def test_the_report_counts_classes(tmp_path):
    columns, header = {"text": "t", "label": "l"}, ("t", "l")
    write_csv(
        tmp_path / "train.csv", [(f"text {n}", "rare" if n < 2 else "often") for n in range(50)], header
    )
    write_csv(tmp_path / "val.csv", [("x", "new"), ("y", "new")], header)
    report = convert_tables([str(tmp_path / name) for name in ("train.csv", "val.csv")], columns)
    assert report == [
        "train: 50 texts; label often 48, rare 2",
        "dev: 2 texts; label new 2",
    ]


@pytest.mark.parametrize(
    ("scores", "options"),
    [("012345", ""), ("0 0.5 1", " --score-range 0 1"), ("-1 .5 8.2", " --score-range -1 9")],
)
def test_the_next_command_names_the_range_of_the_scores(scores, options, tmp_path):
    scores = scores.split() if " " in scores else list(scores)
    write_csv(tmp_path / "train.csv", [(f"text {n}", "b", score) for n, score in enumerate(scores)])
    report = convert_tables([str(tmp_path / "train.csv")], PAIRS, tmp_path / "out")
    assert report[-1] == f"{NEXT} --task stsb --data {tmp_path / 'out'}{options}"


@pytest.mark.parametrize(
    ("columns", "cells", "task"),
    [
        ("sentence1,sentence2,label", ("a", "b", "1"), "mrpc"),
        ("sentence1,sentence2,label", ("a", "b", "NEUTRAL"), "sicke"),
        ("positive,anchor", ("a", "b"), "quora-pairs"),
        ("anchor,positive,negative", ("a", "b", "c"), "nli"),
    ],
)
def test_the_next_command_reads_the_files(columns, cells, task, tmp_path):
    others = [*(f"x{text}" for text in cells[:-1]), "0" if cells[-1] == "1" else cells[-1]]
    write_csv(tmp_path / "train.csv", [cells, others], columns.split(","))
    report = convert_tables([str(tmp_path / "train.csv")], parse_columns(columns), tmp_path / "out")
    assert report[-1] == f"{NEXT} --task {task} --data {tmp_path / 'out'}"
    assert len(read_examples(get_task(task, data=str(tmp_path / "out")), "train")) == 2


@pytest.mark.parametrize(
    ("columns", "cells", "objective"),
    [
        ("text,label", ("a", "good"), "single_text_head"),
        ("sentence1,sentence2,label", ("a", "b", "x"), "softmax"),
    ],
)
def test_the_next_step_with_other_classes_is_a_call_that_trains_on_the_files(
    columns, cells, objective, tmp_path, tiny_folder
):
    rows = [[f"{cell} {n}" for cell in cells[:-1]] + [f"{cells[-1]}{n % 2}"] for n in range(12)]
    for split in ("train", "dev", "test"):
        write_csv(tmp_path / f"{split}.csv", rows, columns.split(","))
    files = [str(tmp_path / f"{split}.csv") for split in ("train", "dev", "test")]
    report = convert_tables(files, parse_columns(columns), tmp_path / "out")
    code = report[-1].removeprefix("next, in Python: ")
    assert f'objective="{objective}", layer=9)' in code and code != report[-1]
    code = code.replace("google/electra-base-discriminator", str(tiny_folder)).replace("layer=9", "epochs=1")
    exec(code.replace("; ", "; result = "), names := {})
    assert names["result"].layer == 4 and all(f"{split}=" in code for split in ("train", "dev", "test"))


def test_columns_may_have_commas_and_come_in_any_order():
    expected = {"sentence1": "a, b", "sentence2": "sentence2", "score": "x=y"}
    found = parse_columns("score=x=y, sentence2,sentence1=a, b")
    assert found == expected and list(found) == list(expected)


# fmt: off
MISTAKES = [
    ("{t} --columns sentence1=first,sentence2=second", ": give one of these lists: sentence1,"),
    ("{t} --columns sentence=first,label", "--columns sentence=first,label: give one of these lists: "),
    ("{t} --columns text=a,text=b,label", "--columns text=a,text=b,label: give one of these lists: "),
    ("{t} --columns text=a,label=similarity --split 1,0,0", "no column 'a' ("),
    ("{t}", "the following arguments are required: --columns"),
    ("{t} --columns {c}", "pairs.csv: its name has none of the words train, test, dev"),
    ("{t} --columns {c} --split 0.8,0.1", "--split 0.8,0.1: write the parts of train, dev and test"),
    ("{t} --columns {c} --split 0.8,0.1,0.2", "--split 0.8,0.1,0.2: write the parts"),
    ("{t} --columns {c} --split 2,-1,0", "--split 2,-1,0: write the parts"),
    ("{t} --columns {c} --split 0.999,0.001,0", "no examples are left for dev"),
    ("{t} train={t} --columns {c} --split 1,0,0 --seed -1", "--seed -1: choose 0 or more"),
    ("train={t} test={t} --columns {c} --split 1,0,0", "--split divides one set of examples, but"),
    ("train={t} --columns text=first,label=none", "no column 'none'"),
    ("train={t} --columns sentence1=first,sentence2=second,score=second", "score 'other 0' is not a number"),
    ("train={t} --columns {c} --out {t}", "cannot write"),
    ("train={t} --columns {c} --out {full}", "train.tsv exists: remove it, or name another folder"),
    ("train={t} --columns {c} --colums x", "unknown option --colums; did you mean --columns?"),
    ("train={t} train={empty} --columns {c}", "no examples ("),
]
# fmt: on


@pytest.mark.parametrize(("line", "message"), MISTAKES)
def test_a_mistake_is_one_line_and_nothing_is_written(line, message, table, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full/train.tsv").write_text("mine")
    empty = write_csv(tmp_path / "empty.csv", [])
    names = {"t": table, "c": "sentence1=first,sentence2=second,score=similarity", "full": tmp_path / "full"}
    words = ["convert", *line.format(**names, empty=empty).split()]
    with pytest.raises(InputError) as caught:
        data_command.main(words if "--out" in words else [*words, "--out", str(tmp_path / "out")])
    assert message in caught.value.as_cli_message()
    assert not (tmp_path / "out").exists() and (tmp_path / "full/train.tsv").read_text() == "mine"


def test_without_out_the_command_only_reports(table, tmp_path, capsys):
    data_command.main(
        ["convert", f"train={table}", "--columns", "sentence1=first,sentence2=second,score=similarity"]
    )
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        "train: 100 pairs; score 0 to 5, mean 2.46",
        "nothing is written: --out names the folder to write",
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["pairs.csv"]
