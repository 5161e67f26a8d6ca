"""Examples are read unchanged from files, wrong lines are named, and labels become targets."""

import re
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tmft.data import SPLITS, Examples, labels_to_targets, read_examples, shuffle_into_batches
from tmft.datasets.task_lookup import get_task, validate_task
from tmft.errors import InputError
from tmft.evaluation.evaluators import EVALUATORS
from tmft.io.text import has_visible_text
from tmft.losses.objectives import OBJECTIVES
from tmft.metrics import METRICS
from tmft.runs.run_config import FineTuningRecipe
from tmft.tasks import CLASSES_FROM_FILE, GROUPS, TASKS, Task

HEADER = "sentence1\tsentence2\tscore\n"


def read(tmp_path, text: str | bytes, task: str | Task = "stsb", **changes) -> Examples:
    """Write the text to a file and read it as the test split of a task."""
    (tmp_path / "test.tsv").write_bytes(text if isinstance(text, bytes) else text.encode("utf-8"))
    task = TASKS[task] if isinstance(task, str) else task
    return read_examples(replace(task, files=f"{tmp_path}/{{split}}.tsv", **changes), "test")


# -------------------------------------------------------------------------------------------------- texts


TEXT = st.text(st.characters(exclude_characters="\t\n\r", exclude_categories=["Cs", "Cc", "Zs"]), min_size=1)


@given(
    data=st.data(),
    columns=st.sampled_from([("text",), ("left", "right"), ("anchor", "positive", "negative")]),
)
def test_texts_and_scores_are_read_unchanged_and_in_order(data, columns, tmp_path_factory):
    """Whatever the characters, the order of the columns, other columns, line ends, and a byte-order mark."""
    names = data.draw(st.permutations([*columns, "score", "id"]))
    texts = st.sampled_from(['He said "no.', "line\u2028sep\x85next", " a b "]) | TEXT
    cells = st.fixed_dictionaries(
        dict.fromkeys(columns, texts) | {"score": st.integers(0, 50).map(lambda n: f"{n / 10:g}"), "id": TEXT}
    )
    rows, end = data.draw(st.lists(cells, min_size=1, max_size=5)), data.draw(st.sampled_from(["\n", "\r\n"]))
    lines = ["\t".join(names), *("\t".join(row[name] for name in names) for row in rows)]
    text = (
        data.draw(st.sampled_from(["", "\ufeff"])) + end.join(lines) + data.draw(st.sampled_from(["", end]))
    )
    examples = read(tmp_path_factory.mktemp("data"), text, Task("", columns=columns, empty_text="."))
    visible = [[row[name] if has_visible_text(row[name]) else "." for row in rows] for name in columns]
    assert examples.texts == tuple(visible) and len(examples) == len(rows)
    assert examples.labels == [float(row["score"]) for row in rows] and examples.subsets == {}


@pytest.mark.parametrize("labels", [[1.0], [1.0, 2.0, 3.0], torch.zeros(3, 4)])
def test_examples_have_a_label_for_each_text_of_each_column(labels):
    """Else texts of two examples would be a pair."""
    assert len(Examples((["a", "b"], ["c", "d"]), torch.ones(2, 24))) == 2
    for texts in ((["a", "b"], ["c", "d"]), (["a"] * len(labels), ["c", "d"])):
        with pytest.raises(
            InputError, match=rf"^examples have \d and 2 texts, but {len(labels)} labels: give one"
        ):
            Examples(texts, labels)


@pytest.mark.parametrize(
    ("columns", "cells"),
    [
        ("word1\tword2", "cat\tdog"),
        ("sentence1\tsentence2", "cat\tdog"),
        ("sentence1\tsentence2\tword1\tword2", "a\tb\tcat\tdog"),
    ],
)
def test_word_similarity_is_read_from_columns_of_words_or_else_of_sentences(columns, cells, tmp_path):
    examples = read(tmp_path, f"{columns}\tscore\n{cells}\t0.5\n", "wordsim")
    assert (examples.texts, examples.labels) == ((["cat"], ["dog"]), [0.5])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (HEADER, r"no examples \(.*test.tsv\): the file has only a header line"),
        (HEADER + "a\t \t1\n", r"empty sentence \(.*test.tsv, line 2\)"),
        (HEADER + "a\t\x01\u200b \t1\n", r"empty sentence \(.*test.tsv, line 2\)"),
        (HEADER + "a\tb\t0_5\n", r"score '0_5' is not a number \(.*test.tsv, line 2\)"),
        (HEADER + "a\tb\t\u0663\n", r"score '\u0663' is not a number"),
        (HEADER + "a\tb\t 3 \n", r"score ' 3 ' is not a number"),
        (HEADER + "a\tb\tfive\n", r"score 'five' is not a number \(.*test.tsv, line 2\)"),
        (HEADER + "a\tb\tnan\n", r"score 'nan' is not a number \(.*test.tsv, line 2\)"),
        (HEADER + "a\tb\t5.1\n", r"score 5.1 is outside 0 to 5 \(.*test.tsv, line 2\)"),
        (HEADER + "a\tb\t-1\n", r"score -1 is outside 0 to 5 .*correct it, or set score_range to the range"),
    ],
)
def test_a_wrong_file_is_one_line_that_names_the_place(text, message, tmp_path):
    with pytest.raises(InputError, match=message) as error:
        read(tmp_path, text)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("split", "has_train", "remedy"),
    [
        ("dev", False, "download it with python -m tmft data, or"),
        ("test", False, "download it with python -m tmft data, or"),
        ("dev", True, "add it; to train, set dev_fraction"),
        ("test", True, "add it, with examples that are not in train or dev"),
    ],
)
def test_the_error_of_a_missing_file_says_how_to_get_it(split, has_train, remedy, tmp_path, monkeypatch):
    monkeypatch.setattr("tmft.data.DATA_FOLDER", tmp_path)  # the data that come with tmft are elsewhere
    (tmp_path / "mine").mkdir()
    if has_train:
        (tmp_path / "mine/train.tsv").write_text(HEADER)
    task = replace(TASKS["stsb"], files="mine/{split}.tsv")
    path = re.escape(str(tmp_path / f"mine/{split}.tsv"))
    with pytest.raises(InputError, match=rf"no such file \({path}\): {remedy}"):
        read_examples(task, split)


# ------------------------------------------------------------------------------------------------- labels


def test_scores_are_read_in_the_range_of_the_task(tmp_path):
    assert read(tmp_path, HEADER + "a\tb\t-1\n", min_score=-1, max_score=1).labels == [-1.0]


def test_classes_become_their_indices(tmp_path):
    text = "sentence1\tsentence2\tscore\tlabel\na\tb\t1\tENTAILMENT\nc\td\t1\tNEUTRAL\n"
    assert read(tmp_path, text, "sicke").labels == [2, 1]


def test_classes_from_the_file_keep_their_names(tmp_path):
    text = "text\tlabel\na\tsport\nb\t7\nc\tsport\nd\t07\n"
    examples = read(tmp_path, text, Task("", columns=("text",), label="label", classes=CLASSES_FROM_FILE))
    assert examples.labels == ["sport", "7", "sport", "07"]


def test_classes_that_merely_equal_the_placeholder_are_not_read_from_the_file(tmp_path):
    task = Task("", columns=("text",), label="label", classes={"any": 0})
    assert read(tmp_path, "text\tlabel\na\tany\n", task).labels == [0]
    with pytest.raises(InputError, match="label 'sport' is none of any"):
        read(tmp_path, "text\tlabel\na\tsport\n", task)


@pytest.mark.parametrize("text", ["", "  "])
def test_an_empty_text_is_replaced_or_an_error(text, tmp_path):
    task = Task("", columns=("text",), label="label", classes=CLASSES_FROM_FILE, empty_text=".")
    assert read(tmp_path, f"text\tlabel\n{text}\tx\n a b\ty\n", task).texts == ([".", " a b"],)
    with pytest.raises(InputError, match=r"empty sentence \(.*test.tsv, line 2\)"):
        read(tmp_path, f"text\tlabel\n{text}\tx\n", replace(task, empty_text=""))


def test_an_unknown_class_is_one_line(tmp_path):
    with pytest.raises(InputError, match=r"label 'neutral' is none of CONTRADICTION, .* \(.*, line 2\)"):
        read(tmp_path, "sentence1\tsentence2\tlabel\na\tb\tneutral\n", "sicke")


def test_scores_are_rescaled_to_0_to_1():
    assert torch.equal(labels_to_targets([0.0, 2.5, 5.0], TASKS["stsb"]), torch.tensor([0.0, 0.5, 1.0]))
    assert torch.equal(
        labels_to_targets([1.0, 3.0, 5.0], Task("", min_score=1.0)), torch.tensor([0.0, 0.5, 1.0])
    )


def test_targets_of_classes_are_their_indices():
    assert torch.equal(labels_to_targets([2, 1], TASKS["sicke"]), torch.tensor([2, 1]))


@pytest.mark.parametrize("task", ["stsb", "sicke"])
def test_target_embeddings_are_only_converted_to_float32(task):
    vectors = torch.tensor([[-3.0, 7.5], [0.25, 100.0]], dtype=torch.float16)
    targets = labels_to_targets(vectors, TASKS[task])
    assert targets.dtype == torch.float32
    assert torch.equal(targets, vectors.float())


# -------------------------------------------------------------------------------------------------- tasks


@pytest.mark.parametrize("name", TASKS)
def test_each_task_of_the_registry_is_valid(name):
    """Its names are those of other registries; classes are counted from 0; only classes have empty texts."""
    task = TASKS[name]
    if task.objective:
        assert task.objective in OBJECTIVES and task.metric in METRICS
        FineTuningRecipe(**task.recipe)
    else:
        has_classes = task.task_type in ("classification", "clustering")
        assert len(task.columns) in (1, 2) and task.empty_text == ("." if has_classes else "")
    if name != "distillation":  # which needs a teacher and a text
        validate_task(task)
    assert task.task_type in EVALUATORS and list(task.classes.values()) == list(range(len(task.classes)))


def test_several_files_are_subsets_in_the_order_of_their_names(tmp_path):
    """Also those of a folder that is named with --data, and has no splits."""
    for name, count in {"b": 2, "a": 3}.items():
        lines = "".join(f"{name}{n}\tx\t{n}\n" for n in range(count))
        (tmp_path / f"{name}.tsv").write_text(HEADER + lines)
    for task in (replace(TASKS["sts12"], files=f"{tmp_path}/*.tsv"), get_task("stsb", data=str(tmp_path))):
        examples = read_examples(task, "test")
        assert examples.texts[0] == ["a0", "a1", "a2", "b0", "b1"]
        assert examples.subsets == {"a": slice(0, 3), "b": slice(3, 5)}


@pytest.mark.parametrize("files", ["one.tsv", "*.tsv"])
@pytest.mark.parametrize("split", ["train", "dev"])
def test_a_task_without_splits_has_test_data_only(split, files, tmp_path):
    (tmp_path / "one.tsv").write_text("text\tlabel\na\tx\nb\ty\n")
    task = Task(f"{tmp_path}/{files}", columns=("text",), label="label", classes=CLASSES_FROM_FILE)
    examples = read_examples(task, "test")
    assert examples.texts == (["a", "b"],) and examples.subsets == {}
    with pytest.raises(InputError, match=rf"^no {split} split \(.*tsv\): this task has test data only$"):
        read_examples(task, split)


def test_groups_have_existing_tasks_and_other_names():
    assert len(GROUPS["sts"]) == 7 and len(GROUPS["clustering"]) == 6 and len(GROUPS["transfer"]) == 7
    assert {name for group in GROUPS.values() for name in group} <= TASKS.keys()
    assert not GROUPS.keys() & TASKS.keys()
    assert set(GROUPS["transfer"]) < set(GROUPS["classification"])


# ------------------------------------------------------------------------------------------------ batches


@given(size=st.integers(1, 60), batch_size=st.integers(1, 70), seed=st.integers(0, 2**40))
def test_each_epoch_has_every_example_once_in_a_new_order_that_the_seed_gives(size, batch_size, seed):
    def epochs(seed: int) -> list[list[int]]:
        generator = torch.Generator().manual_seed(seed)
        drawn = [shuffle_into_batches(size, batch_size, generator) for _ in range(2)]
        assert all(len(batch) == batch_size for epoch in drawn for batch in epoch[:-1])
        return [torch.cat(epoch).tolist() for epoch in drawn]

    first, second = epochs(seed)
    assert sorted(first) == sorted(second) == list(range(size)) and [first, second] == epochs(seed)
    assert size < 20 or (first != second and epochs(seed + 1) != [first, second])


# -------------------------------------------------------------------------------------------- real data sets


@pytest.fixture(scope="module")
def sample() -> dict[str, Examples]:
    return {split: read_examples(TASKS["sample"], split) for split in SPLITS}


def test_the_splits_of_the_shipped_sample_have_their_sizes(sample):
    sizes = {split: len(examples) for split, examples in sample.items()}
    assert sizes == {"train": 454, "dev": 105, "test": 121}


@pytest.mark.parametrize(("one", "other"), [("train", "dev"), ("train", "test"), ("dev", "test")])
def test_no_sentence_of_the_sample_is_in_two_splits(one, other, sample):
    left, right = ({text for column in sample[split].texts for text in column} for split in (one, other))
    assert not left & right
