"""Triplets and duplicates: each published form gives the same rows, a damaged file is one line."""

import pytest

from tmft.datasets.releases import download_dataset
from tmft.datasets.task_lookup import get_task, read_split
from tmft.errors import InputError
from tmft.tasks import TASKS

CSV = 'sent0,sent1,hard_neg\n"A man, old",He is old.,He is young.\na,"b ""c""\nd",e\n'
NLI = """sentence1\tsentence2\tlabel
p\te1\tentailment
q\tx\tneutral
p\tc1\tcontradiction
p\te2\tentailment
r\ty\tentailment
p\te3\tentailment
p\tc2\tcontradiction
"""


def test_the_triplets_of_simcse_are_read_unchanged(tmp_path):
    (tmp_path / "nli_for_simcse.csv").write_text(CSV)
    said = download_dataset("nli-triplets", str(tmp_path / "nli_for_simcse.csv"), tmp_path / "data")
    assert said.endswith("(train 2 triplets)")
    examples = read_split(get_task("nli", data_root=str(tmp_path / "data")), "train")
    assert examples.texts == (["A man, old", "a"], ["He is old.", 'b "c" d'], ["He is young.", "e"])


def test_each_entailed_sentence_is_combined_with_one_that_contradicts_its_premise(tmp_path):
    (tmp_path / "nli").mkdir()
    (tmp_path / "nli/a.tsv").write_text(NLI)
    (tmp_path / "nli/b.tsv").write_text(NLI.replace("gold_", "").replace("label", "gold_label"))
    download_dataset("nli-triplets", str(tmp_path / "nli"), tmp_path / "data")
    examples = read_split(get_task("nli", data_root=str(tmp_path / "data")), "train")
    once = [("p", "e1", "c1"), ("p", "e2", "c2"), ("p", "e3", "c1")]
    assert list(zip(*examples.texts, strict=True)) == once * 2
    assert examples.labels == [0] * 6


@pytest.mark.parametrize("names", ["question1\tquestion2\tis_duplicate", "sentence1\tsentence2\tlabel"])
def test_duplicate_questions_are_the_pairs_of_class_1(names, tmp_path):
    (tmp_path / "q.tsv").write_text(f"id\t{names}\n0\ta\tb\t1\n1\tc\td\t0\n2\te\tf\t1.0\n")
    assert download_dataset("quora-pairs", str(tmp_path / "q.tsv"), tmp_path / "data").endswith(
        "(train 2 pairs)"
    )
    examples = read_split(get_task("quora-pairs", data_root=str(tmp_path / "data")), "train")
    assert examples.texts == (["a", "e"], ["b", "f"])


def test_the_sample_of_snli_gives_800_triplets_and_quora_7585_pairs(real_data, tmp_path):
    if not (real_data / "nli").is_dir() or not (real_data / "quora").is_dir():
        pytest.skip("no folders nli and quora beside the data")
    (tmp_path / "snli").mkdir()
    for split in ("dev", "test"):
        name = f"snli-sample-{split}.tsv"
        (tmp_path / "snli" / name).write_bytes((real_data / "nli" / name).read_bytes())
    assert "(train 800 triplets)" in download_dataset("nli-triplets", str(tmp_path / "snli"), tmp_path)
    assert "(train 7585 pairs)" in download_dataset("quora-pairs", str(real_data / "quora/dev.tsv"), tmp_path)


@pytest.mark.parametrize(
    ("name", "file", "content", "message"),
    [
        ("nli-triplets", "a.csv", "x,y\n1,2\n", "has no columns sent0, sent1, hard_neg"),
        ("nli-triplets", "a.csv", "", "has no columns sent0, sent1, hard_neg"),
        ("nli-triplets", "a.csv", "sent0,sent1,hard_neg\na,b\n", r"no three texts \(.*, row 2\)"),
        ("nli-triplets", "a.csv", "sent0,sent1,hard_neg\na,,c\n", r"no three texts \(.*, row 2\)"),
        ("nli-triplets", "a.tsv", NLI.replace("contra", "x"), "has no premise with an entailed"),
        ("nli-triplets", "a.tsv", "sentence1\tlabel\na\tb\n", "no column 'sentence2'"),
        ("quora-pairs", "a.tsv", "question1\tquestion2\tis_duplicate\na\tb\t0\n", "has no pair of class 1"),
        ("quora-pairs", "a.tsv", "question1\ta\n1\t2\n", "no column 'question2'"),
    ],
)
def test_a_wrong_file_is_one_line_and_nothing_is_written(name, file, content, message, tmp_path):
    (tmp_path / file).write_text(content)
    with pytest.raises(InputError, match=message) as error:
        download_dataset(name, str(tmp_path / file), tmp_path / "data")
    assert "\n" not in str(error.value) and not (tmp_path / "data").exists()


def test_contrastive_tasks_have_no_labels_and_are_evaluated_on_stsb():
    for task in (TASKS["nli"], TASKS["quora-pairs"]):
        assert (task.objective, task.label, task.eval_files) == (
            "multiple_negatives_ranking",
            "",
            "stsb/{split}.tsv",
        )
