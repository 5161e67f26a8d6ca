"""fine_tune in Python: the runs of the command, from any form of examples, and refusals."""

import math
from pathlib import Path

import numpy as np
import pytest
from conftest import PAIRS, ROOT

import train
from tmft import InputError, SentenceEncoder, fine_tune
from tmft.data import Examples
from tmft.datasets.given_examples import collect_examples
from tmft.runs.result_json import read_result
from tmft.tasks import TASKS

ROWS = [(a, b, float(score)) for a, b, score in (line.split("\t") for line in PAIRS)]
# 30 pairs of different texts
DISTINCT_ROWS = [(a + " music" * n, b, round(score - n / 10, 1)) for n in range(10) for a, b, score in ROWS]
DICTS = [{"sentence1": a, "sentence2": b, "score": score} for a, b, score in ROWS]
SHORT = {"epochs": 2, "batch_size": 2, "lr": 1e-3, "precision": "fp32", "device": "cpu"}


def same_weights(a: SentenceEncoder, b: SentenceEncoder) -> bool:
    return all((x == y).all() for x, y in zip(a.state_dict().values(), b.state_dict().values(), strict=True))


class Table:
    """Has the method with which pandas, datasets or polars give the rows of a table."""

    def __init__(self, method: str):
        setattr(self, method, lambda *_: DICTS)

    def __iter__(self):
        return iter(DICTS[0])  # the names of the columns, as in pandas


@pytest.mark.parametrize("form", [DICTS, *map(Table, ["to_dict", "to_list", "to_dicts"]), "a path"])
def test_all_forms_of_examples_give_the_same_run(form, tiny_folder, tmp_path):
    if form == "a path":
        form = tmp_path / "mine.tsv"
        form.write_text("\n".join(["sentence1\tsentence2\tscore", *PAIRS]), encoding="utf-8")
    expected = fine_tune(tiny_folder, ROWS, ROWS, ROWS, layer=0, **SHORT)
    found = fine_tune(tiny_folder, form, form, form, layer=0, **SHORT)
    assert same_weights(found.model, expected.model) and found.folder is None
    assert repr(found).startswith("layer 0: spearman x 100: dev ") and "\n" not in repr(found)


def test_layers_and_seeds_are_compared_and_finished_runs_kept(tiny_folder, tmp_path, capsys):
    words = {"layer": [0, 1, 2], "seeds": 2, "output_dir": tmp_path / "out", **SHORT}
    first = fine_tune(SentenceEncoder.from_pretrained(tiny_folder), ROWS, ROWS, ROWS, **words)
    assert [len(runs) for runs in first.sweep.layers.values()] == [2, 2, 2]
    assert first.layer == first.sweep.best_layer and f"layer{first.layer}-seed" in first.folder.name
    assert "the best of 3 on dev" in repr(first) and "mean of 2 seeds" in repr(first)
    capsys.readouterr()
    words |= {"seeds": np.arange(2), "batch_size": np.int64(2)}  # numbers of NumPy are the same settings
    again = fine_tune(SentenceEncoder.from_pretrained(tiny_folder), ROWS, ROWS, ROWS, **words)
    assert capsys.readouterr().out.count("already finished, kept") == 6
    assert same_weights(again.model, first.model)
    with pytest.raises(InputError, match="lr 0.001, not 0.1: choose another run_name or output_dir"):
        fine_tune(tmp_path / "out/start", ROWS, ROWS, ROWS, **words | {"lr": 0.1})


PAPER = {  # task -> its options, its data, and how the labels of the command may be given in Python
    "stsb": ({}, [score for *_, score in ROWS], [float, str, np.float32]),
    "sickr": ({"score_range": (1, 5)}, [4.5, 1.0, 3.0], [float]),
    "mrpc": (
        {"objective": "cosine_bce", "metric": "f1"},
        [1, 0, 1],
        [int, str, bool, np.bool_, float, lambda label: "yes" if label else "no"],
    ),
    "sicke": (
        {"objective": "softmax", "metric": "f1_macro"},
        ["CONTRADICTION", "NEUTRAL", "ENTAILMENT"],
        [["CONTRADICTION", "NEUTRAL", "ENTAILMENT"].index],  # names in the order of the indices
    ),
}


@pytest.mark.parametrize("task", PAPER)
def test_each_recipe_of_the_paper_is_that_of_the_command(task, tiny_folder, tmp_path):
    options, labels, forms = PAPER[task]
    pairs = [(a, b, label) for (a, b, _), label in zip(ROWS, labels, strict=True)]
    name, folder = TASKS[task].label, tmp_path / TASKS[task].files.partition("/")[0]
    folder.mkdir()
    for split in ("train", "dev", "test"):
        lines = [f"sentence1\tsentence2\t{name}", *("\t".join(map(str, pair)) for pair in pairs)]
        (folder / f"{split}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    command = f"--ckpt {tiny_folder} --task {task} --data-root {tmp_path} --output-dir {tmp_path / 'runs'}"
    train.main(
        [*command.split(), *"--epochs 2 --batch-size 2 --lr 1e-3 --precision fp32 --device cpu".split()]
    )
    [expected] = tmp_path.glob("runs/*-seed0")
    for form in forms:
        given = [(a, b, form(label)) for a, b, label in pairs]
        found = fine_tune(tiny_folder, given, given, given, **options, **SHORT)
        [run] = found.sweep.layers[found.layer]
        assert same_weights(found.model, SentenceEncoder.from_pretrained(expected))
        assert {key: run[key] for key in ("dev", "test")} == {
            key: read_result(expected)[key] for key in ("dev", "test")
        }


def test_columns_of_dicts_are_taken_by_their_names(tiny_folder):
    triplets = [
        {"positive": "p", "negative": "n", "anchor": "a"},
        {"anchor": "a", "negative": "n", "positive": "p"},
    ]
    assert collect_examples(triplets, "train", False)[0] == Examples(
        (["a"] * 2, ["p"] * 2, ["n"] * 2), [[0, 1, 2]] * 2
    )
    both = [{"one": a, "score": score, "two": b, "label": str(score > 2.5)} for a, b, score in ROWS]
    both = [dict(reversed(row.items())) if number else row for number, row in enumerate(both)]
    texts = [list(column) for column in zip(*ROWS, strict=True)][:2]
    assert collect_examples(both, "train")[0] == Examples(tuple(texts), [f"{score:g}" for *_, score in ROWS])
    [run] = fine_tune(tiny_folder, both, both, both, layer=1, objective="softmax", **SHORT).sweep.layers[1]
    assert run["settings"]["task"]["classes"] == {"False": 0, "True": 1}


def test_columns_of_dev_are_taken_by_the_names_of_train():
    rows = [{"left": a, "right": b, "score": score} for a, b, score in ROWS]
    swapped = [{name: row[name] for name in ("right", "score", "left")} for row in rows]
    train, names = collect_examples(rows, "train")
    assert names == ["left", "right"]
    assert collect_examples(swapped, "dev", names_of_train=names)[0] == train
    pairs = [{"sentence1": a, "sentence2": b, "score": score} for a, b, score in ROWS]
    assert collect_examples(pairs, "dev", names_of_train=["anchor", "positive"])[0] == train


COLUMNS = [  # of an example, and of train
    ("id anchor positive", ""),
    ("text id", ""),
    ("sentence1 sentence2 id", ""),
    ("question answer id", ""),
    ("left other", "left right"),
    ("left", "left right"),
    ("anchor negative", ""),
]


@pytest.mark.parametrize("columns", COLUMNS, ids=" of ".join)
def test_a_column_that_is_no_text_is_named_and_not_trained_on(columns):
    names, names_of_train = map(str.split, columns)
    example = {name: f"the {name}" for name in names}
    problem = f"its columns with texts are {', '.join(names)}: give one of these lists, and score or label: "
    with pytest.raises(InputError, match=f"^example 1 of dev, .*: {problem}"):
        collect_examples([example], "dev", False, names_of_train=names_of_train)


def test_contrastive_pairs_are_chosen_by_pairs_with_scores(tiny_folder):
    anchors = [(a, b) for a, b, _ in ROWS] * 2
    objective = {"objective": "multiple_negatives_ranking", "temperature": 0.1, "score_range": (0, 5)}
    result = fine_tune(tiny_folder, anchors, DISTINCT_ROWS[:6], layer=1, **objective, **SHORT)
    [run] = result.sweep.layers[1]
    assert run["settings"]["task"]["objective_args"] == {"temperature": 0.1}
    assert run["dev"]["pairs"] == run["test"]["pairs"] == 3


def test_a_tenth_is_held_out_if_there_is_no_dev_and_no_test(tiny_folder):
    result = fine_tune(tiny_folder, DISTINCT_ROWS, layer=0, **SHORT)
    [run] = result.sweep.layers[0]
    assert (run["dev"]["pairs"], run["test"]["pairs"]) == (3, 3)


F1 = {"objective": "cosine_bce", "metric": "f1"}
# example 12 is held out
RARE = [("a" * (1 + number), "b", "rare" if number == 12 else str(number % 2)) for number in range(20)]
TWO_CLASSES = [(a, b, "same" if score > 2 else "other") for a, b, score in ROWS]
NO_SCORE = [math.nan, np.float32("inf"), np.datetime64("NaT"), None, "", 10**400, 1j, b"x", [1]]
# fmt: off
MISTAKES = [  # what is changed in a call that would work, words of the message
    ({"train": [("a", "b", 7.0)]}, "score 7 is outside 0 to 5 .example 1 of train.: .* or set score_range"),
    ({"train": [("a", "b", 0.2), ("c", "d", 1)]}, "all scores are from 0 to 1, .*: give score_range="),
    ({"train": [("a", "b", "x")]}, "score 'x' is not a number .example 1 of train.: give a number, or an ob"),
    ({"train": ["a b"]}, "example 1 of train, 'a b': give a tuple"),
    ({"train": [("a", 2, 3.0)]}, "give one to three texts, none of them empty, and the label last$"),
    ({"train": [*ROWS, ("a", " ", 3.0)]}, "example 4 of train, .*: give one to three texts, none of them em"),
    ({"train": [{"a": "b", "c": "d", "similarity": 3.0}]}, "give one of these lists, and score or label"),
    ({"train": [{"a": "b", "score": 1}, {"c": "d", "score": 3}]}, "example 2 of train, .*: its columns are"),
    ({"train": [("\ud800", "b", 3.0)]}, "example 1 of train, .*: give one to three texts"),
    ({"train": [("a", "x")] * 4, "objective": "single_text_head"}, "have the class x: give at least two"),
    ({"train": [*ROWS, ("a", 3.0)]}, "it has 1 texts, the first example 2"),
    ({"train": []}, "there are no examples"),
    ({"train": ROWS, "dev": None}, "train has 3 examples, too few"),
    ({"epoch": 3}, "fine_tune has no setting 'epoch': .*did you mean epochs"),
    ({"train": [row[:2] for row in ROWS], "objective": "multiple_negatives_ranking", "dev": None},
     "give pairs with scores"),
    ({"layer": 9}, "4 layers"),
    *(({"train": [*ROWS, ("a", "b", gap)], "objective": objective}, "example 4 of train, .*: it has no score")
      for gap in NO_SCORE for objective in ("cosine_mse", "softmax")),
    ({"test": [("a", "b", True)]}, "score 'True' is not a number .example 1 of test.: give a number, or an"),
    ({"dev": [*ROWS, ("a", "b", "4,5")]}, "score '4,5' is not a number .example 4 of dev.: correct it"),
    ({"train": TWO_CLASSES, "objective": "cosine_bce"}, "score 'same' is not .*metric=.f1. for two classes"),
    ({"train": TWO_CLASSES, "dev": ROWS, **F1}, "classes other and same: it is not clear which of them sim"),
    ({"train": [(a, b, score > 2) for a, b, score in ROWS], **F1},
     "label '4.5' is none of False, True .example 1 of dev"),
    ({"train": [(*pair[:2], n) for n, pair in enumerate(ROWS)], **F1},
     "one number, which cannot separate 3 classes"),
    ({"metric": "pearson", "objective": "softmax"}, "^metric pearson does not fit objective softmax"),
    ({"train": RARE, "dev": None, "test": None, "objective": "softmax"},
     "class rare: dev has examples of it and train has none"),
]
# fmt: on


@pytest.mark.parametrize(("changes", "words"), MISTAKES)
def test_what_cannot_be_trained_is_one_line(changes, words, tiny_folder):
    with pytest.raises(InputError, match=words) as error:
        fine_tune(tiny_folder, **{"train": ROWS, "dev": ROWS, "test": ROWS, **SHORT} | changes)
    assert "\n" not in str(error.value)


def test_a_table_with_commas_is_referred_to_the_command_that_converts_it(tiny_folder, tmp_path):
    (tmp_path / "mine.csv").write_text("sentence1,sentence2,score\na,b,1\n", encoding="utf-8")
    with pytest.raises(InputError, match="no tab in its first line: .* python -m tmft data convert"):
        fine_tune(tiny_folder, tmp_path / "mine.csv")


def test_the_examples_of_the_page_run(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    Path("pairs.csv").write_text('id,a,b\n7,"Dogs, cats.","Dogs, cats."\n8,It is cold.,A man sings.\n')
    blocks = (ROOT / "docs/python.md").read_text(encoding="utf-8").split("```python\n")[1:]
    code = "\n".join(block.partition("```")[0] for block in blocks)
    names = {"ROOT": str(ROOT)}
    exec(
        code.replace("data/twins", f"{ROOT}/data/twins").replace("data/sample", f"{ROOT}/data/sample"), names
    )
    assert np.isfinite(names["result"].sweep.scores(names["result"].layer, "test")).all()
    heading, same, other = Path("cosines.csv").read_text().splitlines()
    assert heading == "id,a,b,cosine" and same == '7,"Dogs, cats.","Dogs, cats.",1.0'
    assert other.startswith("8,It is cold.,A man sings.,") and float(other.rpartition(",")[2]) < 0.5
