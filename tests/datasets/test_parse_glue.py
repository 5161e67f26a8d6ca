"""The files of GLUE: with and without a header, cut lines, missing labels; GLUE's dev becomes our test."""

import numpy as np
import pytest
import torch

from tmft.data import read_examples
from tmft.datasets.releases import download_dataset
from tmft.datasets.task_lookup import expand_groups, get_task
from tmft.errors import InputError
from tmft.evaluation.classification import matthews_corrcoef
from tmft.evaluation.evaluators import EVALUATORS
from tmft.tasks import TASKS

FILES = {  # header, a line of the higher class, a line of the lower one; {n}: a number
    "CoLA": ("", "gj04\t1\t\tok {n}", "gj04\t0\t*\tbad {n}"),
    "SST-2": ("sentence\tlabel", "good {n}\t1", "poor {n}\t0"),
    "QQP": (
        "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate",
        '1\t2\t3\t"a {n}\tb\t1',
        "1\t2\t3\tc\td {n}\t0",
    ),
    "MNLI": (
        "index\tsentence1\tsentence2\tlabel1\tgold_label",
        "0\ta {n}\tb\tx\tentailment",
        "0\tc {n}\td\tx\tneutral",
    ),
    "QNLI": (
        "index\tquestion\tsentence\tlabel",
        "0\twho {n}\tb\tentailment",
        "0\twhy {n}\td\tnot_entailment",
    ),
    "RTE": (
        "index\tsentence1\tsentence2\tlabel",
        "0\ta {n}\tb\tentailment",
        "0\tc {n}\td\tnot_entailment",
    ),
}
GLUE_NAMES = {
    "cola": "CoLA",
    "glue-sst2": "SST-2",
    "qqp": "QQP",
    "mnli": "MNLI",
    "mnli-mm": "MNLI",
    "qnli": "QNLI",
}
GLUE_NAMES |= {"rte": "RTE"}


@pytest.fixture
def glue(tmp_path):
    for name, (header, one, none) in FILES.items():
        (tmp_path / "glue" / name).mkdir(parents=True)
        for split, count in (("train", 45), ("dev", 6), ("dev_matched", 6), ("dev_mismatched", 4)):
            lines = [(none if n % 3 else one).format(n=n) for n in range(count)]
            text = "\n".join([header] * bool(header) + lines) + "\n"
            (tmp_path / "glue" / name / f"{split}.tsv").write_text(text)
    return tmp_path / "glue"


def test_each_data_set_is_read_by_its_task(glue, tmp_path):
    download_dataset("glue", str(glue), tmp_path / "data")
    for name, theirs in GLUE_NAMES.items():
        task = get_task(name, data_root=str(tmp_path / "data"))
        train, dev, test = (read_examples(task, split) for split in ("train", "dev", "test"))
        assert (len(train), len(dev), len(test)) == (42, 3, 4 if name == "mnli-mm" else 6)
        place = 2 if theirs == "MNLI" else 1
        assert set(test.labels) == ({1, 2} if place == 2 else {0, 1})
        assert test.labels[0] == place and "0" in test.texts[0][0]
        assert len(test.texts) == (1 if name in ("cola", "glue-sst2") else 2)
    assert read_examples(get_task("qqp", data_root=str(tmp_path / "data")), "test").texts[0][0] == '"a 0'


def test_lines_that_are_cut_or_without_a_label_are_skipped(glue, tmp_path):
    with open(glue / "QQP/train.tsv", "a") as file:
        file.write("1\t2\t3\tonly one question\n1\t2\t3\ta\t\t1\n")
    with open(glue / "MNLI/train.tsv", "a") as file:
        file.write("0\ta\tb\tx\t-\n")
    assert "qqp/train 42, qqp/dev 3," in (said := download_dataset("glue", str(glue), tmp_path / "data"))
    assert "mnli/train 42, mnli/dev 3," in said


def test_some_of_the_data_sets_are_enough_but_none_is_an_error(glue, tmp_path):
    (tmp_path / "some").mkdir()
    (glue / "RTE").rename(tmp_path / "some/RTE")
    assert "(rte/train 42, rte/dev 3, rte/test 6 " in download_dataset(
        "glue", str(tmp_path / "some"), tmp_path / "data"
    )
    with pytest.raises(InputError, match="has none of the folders CoLA, SST-2, QQP, MNLI, QNLI, RTE: name"):
        download_dataset("glue", str(tmp_path / "data"), tmp_path / "other")
    (tmp_path / "some/RTE/dev.tsv").write_text("index\tlabel\n")
    with pytest.raises(InputError, match="dev.tsv has no column sentence1: download it again"):
        download_dataset("glue", str(tmp_path / "some"), tmp_path / "other")


def test_sentglue_has_nine_tasks():
    assert len(expand_groups(["sentglue"])) == 9 and set(expand_groups(["sentglue"])) <= TASKS.keys()


def test_cola_is_scored_with_matthews_correlation(glue, tmp_path):
    """Embeddings that separate the classes score 1, equal embeddings 0."""
    train = glue / "CoLA/train.tsv"
    train.write_text(train.read_text() * 100)
    download_dataset("glue", str(glue), tmp_path / "data")
    task = get_task("cola", data_root=str(tmp_path / "data"))

    def apart(texts):
        return torch.tensor([[1.0, 0.0] if text.startswith("ok") else [0.0, 1.0] for text in texts])

    def score(encode):
        return EVALUATORS[task.task_type](encode, task, lambda split: read_examples(task, split))["matthews"]

    assert score(apart) == pytest.approx(1)
    assert score(lambda texts: torch.ones(len(texts), 2)) == 0.0


def test_matthews_correlation_equals_that_of_scikit_learn():
    metrics = pytest.importorskip("sklearn.metrics")
    rng = np.random.default_rng(0)
    predicted, gold = rng.integers(2, size=(2, 50))
    assert matthews_corrcoef(predicted, gold) == pytest.approx(metrics.matthews_corrcoef(gold, predicted))
