"""TSV files: what is read is what is written there, and every wrong line is named."""

import pytest
import torch

from tmft.data import SPLITS, TASKS, Task, batches, find_task, read_pairs, scale
from tmft.errors import InputError
from tmft.metrics import METRICS
from tmft.objectives import OBJECTIVES
from tmft.training import Recipe

HEADER = "sentence1\tsentence2\tscore\n"


def read(tmp_path, text: str, **changes):
    (tmp_path / "test.tsv").write_bytes(text.encode("utf-8") if isinstance(text, str) else text)
    return read_pairs(find_task("stsb", data=str(tmp_path), **changes), "test")


def test_quotes_odd_characters_and_order_are_kept(tmp_path):
    pairs = read(tmp_path, HEADER + 'He said "no.\tA "b" c\t2.5\nline\u2028sep\x85next\tb\t0\nx\ty\t5')
    assert pairs.sentence1 == ['He said "no.', "line\u2028sep\x85next", "x"]
    assert pairs.sentence2 == ['A "b" c', "b", "y"] and pairs.scores == [2.5, 0.0, 5.0]


def test_columns_are_found_by_name_and_a_byte_order_mark_and_crlf_do_not_matter(tmp_path):
    pairs = read(tmp_path, "\ufeffscore\tid\tsentence2\tsentence1\r\n1\t7\tb\ta\r\n")
    assert (pairs.sentence1, pairs.sentence2, pairs.scores) == (["a"], ["b"], [1.0])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sentence1\tsentence2\tlabel\na\tb\t1\n", r"no column 'score' \(.*test.tsv, line 1\)"),
        ("", r"no column 'sentence1' \(.*test.tsv, line 1\)"),
        (HEADER, r"no sentence pairs \(.*test.tsv\)"),
        ((HEADER + "a\tb\t1\n").replace("\t", ","), r"no column 'sentence1' \(.*test.tsv, line 1\)"),
        (HEADER + "a\tb\t1\na\tb\n", r"2 fields instead of 3 \(.*test.tsv, line 3\)"),
        (HEADER + "a\tb\tc\t1\n", r"4 fields instead of 3 \(.*test.tsv, line 2\)"),
        (HEADER + "a\tb\t1\n\n", r"1 fields instead of 3 \(.*test.tsv, line 3\)"),
        (HEADER + "a\t \t1\n", r"empty sentence \(.*test.tsv, line 2\)"),
        (HEADER + "a\tb\tfive\n", r"score 'five' is not a number \(.*test.tsv, line 2\)"),
        (HEADER + "a\tb\tnan\n", r"score nan is outside 0 to 5 \(.*test.tsv, line 2\)"),
        (HEADER + "a\tb\t5.1\n", r"score 5.1 is outside 0 to 5 \(.*test.tsv, line 2\)"),
        (HEADER.encode() + b"\xff\xfe\tb\t1\n", r"cannot be read as UTF-8 text"),
    ],
)
def test_a_wrong_file_is_one_clear_line_with_its_place(text, message, tmp_path):
    with pytest.raises(InputError, match=message) as error:
        read(tmp_path, text)
    assert "\n" not in str(error.value)


def test_a_missing_file_or_folder_or_task(tmp_path):
    with pytest.raises(InputError, match=r"no such file \(.*stsb/dev.tsv\): get it with data/get_data.py"):
        read_pairs(find_task("stsb", data_root=str(tmp_path)), "dev")
    with pytest.raises(InputError, match="no folder .*absent: --data names a folder"):
        find_task("stsb", data=str(tmp_path / "absent"))
    with pytest.raises(InputError, match="no task 'stsc': choose from stsb, "):
        find_task("stsc")


def test_the_score_range_can_be_told(tmp_path):
    assert read(tmp_path, HEADER + "a\tb\t-1\n", score_range=[-1, 1]).scores == [-1.0]
    with pytest.raises(InputError, match="--score-range 1 1: the first number must be the smaller"):
        find_task("stsb", score_range=[1, 1])


def test_classes_are_numbers_and_only_known_ones_are_read(tmp_path):
    def read(text):
        (tmp_path / "test.tsv").write_text("sentence1\tsentence2\tscore\tlabel\n" + text)
        return read_pairs(find_task("sicke", data=str(tmp_path)), "test")

    pairs = read("a\tb\t1\tENTAILMENT\nc\td\t1\tNEUTRAL\n")
    assert pairs.scores == [2, 1] and scale(pairs.scores, TASKS["sicke"]).tolist() == [2, 1]
    with pytest.raises(
        InputError, match=r"label 'neutral' is none of CONTRADICTION, .* \(.*test.tsv, line 2\)"
    ):
        read("a\tb\t1\tneutral\n")
    with pytest.raises(InputError, match="--score-range 0 1: task sicke has classes, leave it out"):
        find_task("sicke", score_range=[0, 1])


@pytest.mark.parametrize("name", TASKS)
def test_each_row_names_what_there_is(name):
    task = TASKS[name]
    assert task.objective in OBJECTIVES and task.metric in METRICS
    assert list(task.classes.values()) == list(range(len(task.classes)))
    Recipe(**task.recipe)


def test_a_task_of_several_files_is_one_set_with_named_parts(tmp_path):
    (tmp_path / "sts12").mkdir()
    for name, count in {"b": 2, "a": 3}.items():
        lines = "".join(f"{name}{n}\tx\t{n}\n" for n in range(count))
        (tmp_path / "sts12" / f"{name}.tsv").write_text(HEADER + lines)
    pairs = read_pairs(find_task("sts12", data_root=str(tmp_path)), "test")
    assert pairs.sentence1 == ["a0", "a1", "a2", "b0", "b1"]
    assert pairs.subsets == {"a": slice(0, 3), "b": slice(3, 5)}
    with pytest.raises(InputError, match="no dev split .*: this task has test data only"):
        read_pairs(TASKS["sts12"], "dev")


def test_targets_are_scores_in_0_to_1():
    assert torch.equal(scale([0.0, 2.5, 5.0], TASKS["stsb"]), torch.tensor([0.0, 0.5, 1.0]))
    assert torch.equal(scale([1.0, 3.0, 5.0], Task("", min_score=1.0)), torch.tensor([0.0, 0.5, 1.0]))


def test_batches_are_a_new_shuffle_each_time_and_the_same_from_the_same_seed():
    def epochs(seed):
        generator = torch.Generator().manual_seed(seed)
        return [list(batches(10, 4, generator)) for _ in range(2)]

    first, second = epochs(0)
    assert [len(batch) for batch in first] == [4, 4, 2] and sorted(sum(first, [])) == list(range(10))
    assert first != second and epochs(0) == [first, second] and epochs(1)[0] != first


def test_the_sample_that_ships_is_sound():
    splits = {split: read_pairs(TASKS["sample"], split) for split in SPLITS}
    assert {split: len(pairs) for split, pairs in splits.items()} == {"train": 454, "dev": 105, "test": 121}
    sentences = {split: {*pairs.sentence1, *pairs.sentence2} for split, pairs in splits.items()}
    assert not sentences["train"] & sentences["test"] and not sentences["train"] & sentences["dev"]
    assert not sentences["dev"] & sentences["test"]


SIZES = {
    "stsb": {"train": 5749, "dev": 1500, "test": 1379},
    "stsb-de": {"train": 5749, "dev": 1500, "test": 1379},
    "stsb-es": {"train": 5749, "dev": 1500, "test": 1379},
    "kor-sts": {"train": 5749, "dev": 1500, "test": 1379},
    "sickr": {"train": 4500, "test": 4927},
    "sicke": {"train": 4500, "test": 4927},
    "mrpc": {"test": 1725},
    "sts12": {"test": 3108},
    "sts13": {"test": 1500},
    "sts14": {"test": 3750},
    "sts15": {"test": 3000},
    "sts16": {"test": 1186},
}


@pytest.mark.parametrize("name", SIZES)
def test_the_real_sets_have_their_official_sizes(name, real_data):
    task = find_task(name, data_root=str(real_data))
    if not list(real_data.glob(TASKS[name].files.replace("{split}", "test"))):
        pytest.skip(f"{name} is not among the data sets in {real_data}")
    assert {split: len(read_pairs(task, split)) for split in SIZES[name]} == SIZES[name]
