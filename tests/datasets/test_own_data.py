"""What `tmft data` makes of tables and texts of the user, and its statistics of data sets."""

import csv

import pytest

from tmft.cli import data_command
from tmft.cli.data_command import data_statistics
from tmft.data import Examples, read_examples
from tmft.datasets.own_data import convert_tables, parse_columns
from tmft.datasets.task_lookup import get_task
from tmft.errors import InputError
from tmft.students.distillation import extract_sentences, line_to_sentences
from tmft.tasks import TASKS

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
    expected = 'He said "no", and left.\ttwo lines\t4.50\nGrüße\tx;y\t0\n'
    assert text == "sentence1\tsentence2\tscore\n" + expected
    examples = read_examples(get_task("stsb", data=str(tmp_path / "out")), "train")
    assert examples.labels == [4.5, 0.0] and examples.texts[1] == ["two lines", "x;y"]


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


def test_the_report_says_what_is_worth_a_second_look(tmp_path, capsys):
    train = [("a", "b", "1"), ("B", "a ", "2"), ("a", "b", "1"), ("c\td", "e", "0.5"), ("", "x", "1")]
    train += [("y", "z", ""), ("y", "\u200b", "1")]
    test = [("b", "A", "4"), ("c d", "new", "5.5"), ("p", "q", "-2")]
    files = [write_csv(tmp_path / "1.csv", train), write_csv(tmp_path / "test.csv", test)]
    columns = ",".join(map("=".join, PAIRS.items()))
    data_command.main(
        ["convert", f"train={files[0]}", files[1], "--columns", columns, "--out", str(tmp_path / "out")]
    )
    assert capsys.readouterr().out.splitlines() == [
        f"note {files[0]}: 3 left out, with an empty text or no score or label",
        "train: 4 pairs, score 0.5 to 2",
        "note train: 2 pairs repeat an earlier one",
        "test: 3 pairs, score -2 to 5.5",
        "note test: 3 of its 6 distinct texts are in an earlier split",
        f"wrote {tmp_path / 'out'} (train.tsv, test.tsv)",
    ]


def test_a_label_is_written_as_it_is_read_at_every_door_and_a_text_as_it_is(tmp_path):
    """A column with gaps has 1.0 for the class 1 in a CSV file of pandas."""
    (tmp_path / "train.csv").write_text("text,label\n1.0,1.0\n2.0,0.0\n")
    convert_tables([str(tmp_path / "train.csv")], parse_columns("text,label"), tmp_path / "new")
    assert (tmp_path / "new/train.tsv").read_text() == "text\tlabel\n1.0\t1\n2.0\t0\n"


def test_columns_may_come_in_any_order():
    expected = {"sentence1": "a b", "sentence2": "sentence2", "score": "x=y"}
    found = parse_columns("score=x=y, sentence2,sentence1=a b")
    assert found == expected and list(found) == list(expected)


# fmt: off
MISTAKES = [
    ("{t} --columns sentence1=first,sentence2=second", ": give one of these lists: sentence1,"),
    ("{t} --columns sentence=first,label", "--columns sentence=first,label: give one of these lists: "),
    ("{t} --columns text=a,text=b,label", "--columns text=a,text=b,label: give one of these lists: "),
    ("{t} --columns text=a,label=similarity --split 1,0,0", "no column 'a' ("),
    ("{t}", "the following arguments are required: --columns"),
    ("{t} --columns {c}", "pairs.csv names none of the splits train, dev, test: write train="),
    ("{t} --columns {c} --split 0.8,0.1", "--split 0.8,0.1: write the parts of train, dev and test"),
    ("{t} --columns {c} --split 0.8,0.1,0.2", "--split 0.8,0.1,0.2: write the parts"),
    ("{t} --columns {c} --split 2,-1,0", "--split 2,-1,0: write the parts"),
    ("{t} --columns {c} --split 0.999,0.001,0", "no examples are left for dev: give more, or change --split"),
    ("{t} --columns {c} --split 1,0,0 --seed -1", "--seed -1: choose 0 or more"),
    ("train={t} --columns text=first,label=none", "no column 'none'"),
    ("train={t} --columns sentence1=first,sentence2=second,score=second", "score 'other 0' is not a number"),
    ("train={t} --columns {c} --out {full}", "full exists already: name a new folder"),
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


# ---------------------------------------------------------------------------------------------- sentences

LONG = "The first sentence is here, and it is not short at all. “The second one” begins with a quote! " + (
    "Does (he) know that e.g. this stays, as no capital follows? Yes."
)


def test_a_long_line_gives_its_sentences_and_itself_and_a_short_one_stays_whole():
    sentences = line_to_sentences(LONG, 250)
    assert sentences[-1] == LONG and " ".join(sentences[:-1]) == LONG and len(sentences) == 5
    assert sentences[1] == "“The second one” begins with a quote!"
    assert line_to_sentences(LONG, 100) == sentences[:-1], "the line itself is too long"
    assert line_to_sentences("Hi there. How are you?", 250) == ["Hi there. How are you?"]


def test_short_long_repeated_and_excluded_sentences_are_left_out():
    lines = ["A dog runs in the park.", "a DOG runs, in the park", "Too short.", "?" * 40, "x" * 300, LONG]
    excluded = ["does he know that eg this stays as no capital follows"]
    kept = [lines[0], *line_to_sentences(LONG, 120)[:2]]
    assert list(extract_sentences(lines, 20, 120, excluded)) == kept


def test_the_command_writes_one_sentence_per_line(tmp_path, capsys):
    text, test_set, out = tmp_path / "text.txt", tmp_path / "test.tsv", tmp_path / "lines.txt"
    text.write_text(f"{LONG}\nA dog runs in the park.\n", encoding="utf-8")
    test_set.write_text("sentence1\tsentence2\nA dog runs in the park\tsomething else\n", encoding="utf-8")
    data_command.main(["sentences", str(text), "--out", str(out), "--exclude", str(test_set)])
    assert "4 sentences" in capsys.readouterr().out
    assert out.read_text(encoding="utf-8").splitlines() == [*line_to_sentences(LONG, 250)[:3], LONG]
    with pytest.raises(InputError, match="no sentence of 20 to 21 characters"):
        data_command.main(["sentences", str(text), "--out", str(tmp_path / "other"), "--max-length", "21"])
    with pytest.raises(InputError, match="the command reads .*, name another place"):
        data_command.main(["sentences", str(text), "--out", str(text)])


# --------------------------------------------------------------------------------------------- statistics


def test_classes_and_tokens_are_counted():
    def letters(texts):
        return [list(text.replace(" ", "")) for text in texts]

    examples = Examples((["a b", "b c 1", "a", "ab."],), [0, 0, 0, 1])
    cells = data_statistics(TASKS["agnews"], examples, letters)
    assert cells == ["4", "2", "3.0", "5", "5", "2", "2", "71", "78", ""]
    # Of scores, those within 1 of both ends are compared; the texts of a pair are joined.
    examples = Examples((["a", "b", "c", "d"], ["a", "b", "x y", "z"]), [5.0, 4.0, 1.0, 2.5])
    assert data_statistics(TASKS["stsb"], examples, letters)[:7] == ["4", "", "2.0", "7", "7", "2", "2"]


def test_the_table_of_statistics_has_a_line_for_each_split_that_is_there(tmp_path, capsys):
    (tmp_path / "clustering").mkdir()
    (tmp_path / "clustering/tweet.tsv").write_text("label\ttext\na\tone two\nb\ttwo\n")
    (tmp_path / "stsb").mkdir()
    for split in ("dev", "test"):
        (tmp_path / f"stsb/{split}.tsv").write_text("sentence1\tsentence2\tscore\na\tb\t5\na\tc\t0\n")
    where = ["--tokenizer", "data/tiny", "--data-root", str(tmp_path)]
    data_command.main(["statistics", "--task", "tweet", "stsb", *where])
    _, *lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:4] for line in lines] == [
        ["tweet", "test", "2", "2"], ["stsb", "dev", "2", "1.0"], ["stsb", "test", "2", "1.0"],
    ]  # fmt: skip
