"""Statistics of data sets: small ones by hand, and the command."""

from tmft.cli import data_command
from tmft.data import Examples
from tmft.datasets.statistics import data_statistics
from tmft.tasks import TASKS


def letters(texts: list[str]) -> list[list[str]]:
    return [list(text.replace(" ", "")) for text in texts]


def test_classes_and_tokens_are_counted():
    examples = Examples((["a b", "b c 1", "a", "ab."],), [0, 0, 0, 1])
    cells = data_statistics(TASKS["agnews"], examples, letters)
    assert cells == ["4", "2", "3.0", "5", "5", "2", "2", "71", "78", ""]


def test_scores_within_1_of_both_ends_are_compared_and_pairs_are_joined():
    examples = Examples((["a", "b", "c", "d"], ["a", "b", "x y", "z"]), [5.0, 4.0, 1.0, 2.5])
    assert data_statistics(TASKS["stsb"], examples, letters)[:7] == ["4", "", "2.0", "7", "7", "2", "2"]


def test_the_command_has_a_line_for_each_split_that_is_there(tmp_path, capsys):
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
