"""GLUE's own files: header or none, cut lines, labels that nobody agreed on; dev is what is scored."""

import numpy as np
import pytest
import torch

from tmft.data import read_examples
from tmft.datasets.eval_tasks import SCORED
from tmft.datasets.releases import get
from tmft.datasets.task_lookup import get_task, names_of
from tmft.errors import InputError
from tmft.evaluation.classification import matthews
from tmft.evaluation.evaluators import SUITES

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
TASKS = {
    "cola": "CoLA",
    "glue-sst2": "SST-2",
    "qqp": "QQP",
    "mnli": "MNLI",
    "mnli-mm": "MNLI",
    "qnli": "QNLI",
}
TASKS |= {"rte": "RTE"}


@pytest.fixture
def glue(tmp_path):
    for name, (header, one, none) in FILES.items():
        (tmp_path / "glue" / name).mkdir(parents=True)
        for split, count in (("train", 45), ("dev", 6), ("dev_matched", 6), ("dev_mismatched", 4)):
            lines = [(none if n % 3 else one).format(n=n) for n in range(count)]
            text = "\n".join([header] * bool(header) + lines) + "\n"
            (tmp_path / "glue" / name / f"{split}.tsv").write_text(text)
    return tmp_path / "glue"


def test_each_set_is_read_by_its_task(glue, tmp_path):
    get("glue", str(glue), tmp_path / "data")
    for name, theirs in TASKS.items():
        task = get_task(name, data_root=str(tmp_path / "data"))
        train, dev, test = (read_examples(task, split) for split in ("train", "dev", "test"))
        assert (len(train), len(dev), len(test)) == (42, 3, 4 if name == "mnli-mm" else 6)
        place = 2 if theirs == "MNLI" else 1
        assert set(test.labels) == ({1, 2} if place == 2 else {0, 1})
        assert test.labels[0] == place and "0" in test.texts[0][0]
        assert len(test.texts) == (1 if name in ("cola", "glue-sst2") else 2)
    assert read_examples(get_task("qqp", data_root=str(tmp_path / "data")), "test").texts[0][0] == '"a 0'


def test_lines_that_are_cut_or_without_a_label_are_left_out(glue, tmp_path):
    with open(glue / "QQP/train.tsv", "a") as file:
        file.write("1\t2\t3\tonly one question\n1\t2\t3\ta\t\t1\n")
    with open(glue / "MNLI/train.tsv", "a") as file:
        file.write("0\ta\tb\tx\t-\n")
    assert "qqp/train 42, qqp/dev 3," in (said := get("glue", str(glue), tmp_path / "data"))
    assert "mnli/train 42, mnli/dev 3," in said


def test_a_part_of_glue_will_do_but_not_none(glue, tmp_path):
    (tmp_path / "some").mkdir()
    (glue / "RTE").rename(tmp_path / "some/RTE")
    assert "(rte/train 42, rte/dev 3, rte/test 6 " in get("glue", str(tmp_path / "some"), tmp_path / "data")
    with pytest.raises(InputError, match="holds none of the folders CoLA, SST-2, QQP, MNLI, QNLI, RTE: name"):
        get("glue", str(tmp_path / "data"), tmp_path / "other")
    (tmp_path / "some/RTE/dev.tsv").write_text("index\tlabel\n")
    with pytest.raises(InputError, match="dev.tsv has no column sentence1: get it anew"):
        get("glue", str(tmp_path / "some"), tmp_path / "other")


def test_the_nine_tasks_of_sentglue():
    assert len(names_of(["sentglue"])) == 9 and set(names_of(["sentglue"])) <= SCORED.keys()


def test_cola_is_judged_by_matthews_correlation(glue, tmp_path):
    """Embeddings that tell the classes apart score 1, those that are all alike 0."""
    train = glue / "CoLA/train.tsv"
    train.write_text(train.read_text() * 100)
    get("glue", str(glue), tmp_path / "data")
    task = get_task("cola", data_root=str(tmp_path / "data"))

    def apart(texts):
        return torch.tensor([[1.0, 0.0] if text.startswith("ok") else [0.0, 1.0] for text in texts])

    def score(encode):
        return SUITES[task.suite](encode, task, lambda split: read_examples(task, split))["matthews"]

    assert score(apart) == pytest.approx(1)
    assert score(lambda texts: torch.ones(len(texts), 2)) == 0.0


def test_matthews_correlation_is_that_of_scikit_learn():
    metrics = pytest.importorskip("sklearn.metrics")
    rng = np.random.default_rng(0)
    predicted, gold = rng.integers(2, size=(2, 50))
    assert matthews(predicted, gold) == pytest.approx(metrics.matthews_corrcoef(gold, predicted))
