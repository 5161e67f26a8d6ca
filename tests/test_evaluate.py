"""python evaluate.py: a run on its own task, a checkpoint at every layer, tasks with classes."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import PAIRS, ROOT
from scipy import stats

import evaluate
import train
from tmft import InputError, SentenceEncoder
from tmft.data import read_examples
from tmft.evaluation.clustering import clustering_accuracy, k_means
from tmft.metrics import cosines, spearman
from tmft.runs.run_folder import read_result
from tmft.tasks import GROUPS, TASKS

OTHER_PAIRS = ["a man plays\tmusic", "the cat eats\ta dog eats", "music\tguitar music", "is it?\tnot a cat"]


def with_classes(folder: Path, names: tuple[str, ...]) -> None:
    """Four pairs of the given classes in place of the scored ones."""
    lines = ["sentence1\tsentence2\tlabel", *map("\t".join, zip(OTHER_PAIRS, names, strict=True))]
    for split in ("train", "dev", "test"):
        (folder / f"{split}.tsv").write_text("\n".join(lines) + "\n")


def scores(folder: Path, *words: str) -> dict:
    """Layer -> task -> what evaluate.py writes about a model."""
    path = folder.parent / "scores.json"
    evaluate.main([str(folder), "--json", str(path), *words])
    return json.loads(path.read_text())["layers"]


def test_a_run_is_scored_on_the_task_it_was_trained_on(arguments, tmp_path, capsys):
    train.main([*arguments, "--layer", "2"])
    folder = tmp_path / "runs" / "r-layer2-seed0"
    capsys.readouterr()
    again = scores(folder)["2"]["pairs"]
    assert again == pytest.approx(read_result(folder)["test"])
    assert f"{100 * again['spearman']:.2f}" in capsys.readouterr().out


def test_a_model_is_scored_by_its_prompt_and_by_its_similarity(tiny_folder, tiny_data, capsys):
    model, pairs = SentenceEncoder.from_pretrained(tiny_folder), [line.split("\t") for line in PAIRS]
    model.prompts["sts"], model.similarity_fn_name = "the cat [X] not", "dot"
    model.save_pretrained(tiny_folder)
    [result] = scores(tiny_folder, "--data", str(tiny_data), "--prompt-name", "sts").values()
    assert "tokens, similarity dot\n" in capsys.readouterr().out
    u, v = (model.encode([pair[column] for pair in pairs], prompt_name="sts") for column in (0, 1))
    predicted, gold = model.similarity_pairwise(u, v), [float(pair[2]) for pair in pairs]
    assert result["pairs"]["pearson"] == pytest.approx(np.corrcoef(predicted, gold)[0, 1], abs=1e-5)


def test_a_trained_model_is_compared_by_the_cosine_whatever_its_checkpoint_was(
    arguments, tiny_folder, tmp_path
):
    model = SentenceEncoder.from_pretrained(tiny_folder)
    model.prompts["query"], model.similarity_fn_name = "a dog ", "dot"
    model.save_pretrained(tiny_folder)
    train.main([*arguments, "--layer", "2"])
    trained = SentenceEncoder.from_pretrained(tmp_path / "runs" / "r-layer2-seed0")
    assert (trained.similarity_fn_name, trained.prompts["query"]) == ("cosine", "a dog ")


def test_a_run_with_a_head_is_saved_whole_scored_alike_and_kept(arguments, tiny_data, tmp_path, capsys):
    """A head of three classes, which fits only its own layer."""
    with_classes(tiny_data, ("NEUTRAL", "ENTAILMENT", "CONTRADICTION", "NEUTRAL"))
    words = [*arguments, "--task", "sicke", "--layer", "1"]
    train.main(words)
    folder = tmp_path / "runs" / "r-layer1-seed0"
    result = read_result(folder)
    assert list(result["dev"]) == ["pairs", "f1_macro", "accuracy"] == list(result["epochs"][0]["dev"])
    assert "| split | f1_macro x 100 | accuracy x 100 |" in (folder / "README.md").read_text()
    capsys.readouterr()
    again = {split: scores(folder, "--split", split)["1"]["pairs"] for split in ("dev", "test")}
    assert again["test"] == result["test"] and again["dev"] == result["dev"] | {"pairs": 4}
    assert "f1_macro  accuracy" in capsys.readouterr().out
    assert scores(folder, "--data", str(tiny_data))["1"]["pairs"] == result["test"]
    problem = "^layer all: the head of softmax fits only the layer that it was trained on: remove layer"
    with pytest.raises(InputError, match=problem):
        evaluate.main([str(folder), "--layer", "all"])
    train.main(words)
    assert "already finished, kept" in capsys.readouterr().out


def test_a_checkpoint_without_a_head_cannot_be_scored_on_classes(tiny_folder, tiny_data):
    with_classes(tiny_data, ("NEUTRAL", "ENTAILMENT", "CONTRADICTION", "NEUTRAL"))
    with pytest.raises(InputError, match="has no head.safetensors, and softmax needs a trained head"):
        evaluate.main([str(tiny_folder), "--data", str(tiny_data), "--task", "sicke"])


def test_the_threshold_that_is_best_on_dev_is_applied_to_test(arguments, tiny_data, tmp_path):
    """Test has the pairs of dev with the other labels: its own best threshold would be another one."""
    with_classes(tiny_data, ("1", "0", "1", "0"))
    lines = (tiny_data / "dev.tsv").read_text().splitlines()
    swapped = [lines[0], *(line[:-1] + str(1 - int(line[-1])) for line in lines[1:])]
    (tiny_data / "test.tsv").write_text("\n".join(swapped) + "\n")
    train.main([*arguments, "--task", "mrpc", "--layer", "1"])
    folder = tmp_path / "runs" / "r-layer1-seed0"
    dev, test = (read_result(folder)[split] for split in ("dev", "test"))
    assert test["threshold"] == dev["threshold"] and test["accuracy"] == pytest.approx(1 - dev["accuracy"])
    assert f"if its cosine is at least {dev['threshold']:.4f}." in (folder / "README.md").read_text()

    (tiny_data / "dev.tsv").unlink()  # the run has its threshold
    assert scores(folder)["1"]["pairs"] == pytest.approx(test)
    (tiny_data / "dev.tsv").write_text("\n".join(lines) + "\n")
    every = scores(folder, "--layer", "all")  # each layer finds its own on dev
    assert every["1"]["pairs"] == pytest.approx(test)
    assert every["0"]["pairs"]["threshold"] != test["threshold"]


def test_a_folder_of_test_files_is_scored_as_one_set_and_as_the_mean_of_its_files(
    tiny_folder, tiny_data, capsys
):
    for split in ("train", "dev", "test"):
        (tiny_data / f"{split}.tsv").rename(tiny_data / f"part-{split}.tsv")
    evaluate.main([str(tiny_folder), "--data", str(tiny_data), "--task", "sts12"])
    heading, line = capsys.readouterr().out.strip().splitlines()[-2:]
    assert heading.split() == ["task", "examples", "spearman", "pearson", "mean", "of", "subsets"]
    assert line.split()[:2] == ["sts12", "9"] and line.endswith("(3)")


# --------------------------------------------------------------------------------------- groups of tasks

TEXTS = ["a cat", "the cat eats", "a cat eats", "music", "guitar music", "the man", "is it?", "it is"]


@pytest.fixture
def root(tmp_path) -> Path:
    """A folder of task folders: the seven of sts; clusters named by words; a classifier's two splits."""
    scored = "\n".join(["sentence1\tsentence2\tscore", *(f"{p}\t{n}" for n, p in enumerate(OTHER_PAIRS, 1))])
    files = {f"{'sick' if name == 'sickr' else name}/test.tsv": scored for name in GROUPS["sts"]}
    for kind, labels in {"clustering/tweet": ("ant", "bee"), "senteval/trec": ("ABBR", "HUM")}.items():
        lines = [f"{text}\t{labels[n // 4]}" for n, text in enumerate(TEXTS)] + [f"\t{labels[1]}"]  # no text
        splits = {".tsv": 1} if kind == "clustering/tweet" else {"/train.tsv": 3, "/test.tsv": 1}
        files |= {kind + split: "\n".join(["text\tlabel", *lines * n]) for split, n in splits.items()}
    for name, content in files.items():
        path = tmp_path / "data" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content + "\n")
    return tmp_path / "data"


def test_clusters_are_those_of_k_means_on_the_embeddings_and_an_empty_text_is_a_full_stop(tiny_folder, root):
    (found,) = scores(tiny_folder, "--data-root", str(root), "--task", "tweet").values()
    x = torch.from_numpy(SentenceEncoder.from_pretrained(tiny_folder).encode([*TEXTS, "."]))
    gold, seeds = [0] * 4 + [1] * 5, [torch.Generator().manual_seed(seed) for seed in range(10)]
    accuracies = [clustering_accuracy(k_means(x, 2, seed), gold) for seed in seeds]
    assert found["tweet"].keys() == {"pairs", "accuracy", "std"} and found["tweet"]["pairs"] == 9
    assert found["tweet"]["accuracy"] == pytest.approx(sum(accuracies) / 10)


def test_tasks_of_several_kinds_are_scored_together_each_with_its_own_metric(tiny_folder, root, capsys):
    (found,) = scores(tiny_folder, "--data-root", str(root), "--task", "trec", "stsb", "tweet").values()
    assert found["trec"].keys() == {"pairs", "accuracy", "dev_accuracy"} and found["trec"]["pairs"] == 9
    heading, trec, stsb, tweet = capsys.readouterr().out.split("\n\n")[1].splitlines()
    assert heading.split() == "task examples accuracy dev_accuracy spearman pearson std".split()
    starts = ["trec", "9"], ["stsb", "4"], ["tweet", "9"]
    for line, start in zip((trec, stsb, tweet), starts, strict=True):
        assert line.split()[:2] == start and len(line.split()) == 4


def test_every_layer_of_every_kind_of_task_has_its_metric(tiny_folder, root, capsys):
    every = scores(tiny_folder, "--data-root", str(root), "--task", "stsb", "tweet", "--layer", "all")
    heading, *lines = capsys.readouterr().out.split("\n\n")[1].splitlines()
    assert heading.split() == ["layer", "stsb", "tweet", *"bar: mean of the tasks".split()]
    for layer, line in zip(every, lines, strict=True):
        both = every[layer]["stsb"]["spearman"], every[layer]["tweet"]["accuracy"]
        assert line.split()[:3] == [layer, *(f"{100 * score:.2f}" for score in both)]


def test_a_file_that_only_a_classifier_needs_is_missed_before_a_model_is_loaded(tmp_path, monkeypatch):
    """Not when the task is reached, after others that took minutes."""
    monkeypatch.setattr(evaluate, "load_model", lambda args: pytest.fail("a model was loaded"))
    (tmp_path / "mrpc").mkdir()
    for split in ("train", "test"):
        rows = "sentence1\tsentence2\tlabel\na cat\ta dog\t0\na man\tthe man\t1\n"
        (tmp_path / "mrpc" / f"{split}.tsv").write_text(rows, encoding="utf-8")
    with pytest.raises(InputError, match="no such file .*dev.tsv"):
        evaluate.main(["any", "--task", "mrpc-transfer", "--data-root", str(tmp_path)])


# ------------------------------------------------------------------------------------------ two models


def compared(first: Path, second: Path, path: Path, *words: str) -> dict:
    evaluate.main([str(first), str(second), "--json", str(path), *words])
    return json.loads(path.read_text())


def test_a_teacher_and_a_student_are_scored_as_alone_with_an_interval_that_is_scipys(tmp_path, capsys):
    models = ROOT / "data/twins/mlm", ROOT / "data/tiny"
    found = compared(*models, tmp_path / "both.json", "--task", "sample")
    pairs = read_examples(TASKS["sample"], "test")
    of_both, gold = [], np.asarray(pairs.labels)
    for folder in models:
        model = SentenceEncoder.from_pretrained(folder)
        of_both.append(cosines(*(model.encode(texts, convert_to_tensor=True) for texts in pairs.texts)))
    row = found["tasks"]["sample"]
    assert [row["first"], row["second"]] == pytest.approx([spearman(one, gold) for one in of_both])
    assert row["difference"] == pytest.approx(row["second"] - row["first"])
    theirs = stats.bootstrap(
        (*of_both, gold), lambda u, v, gold: spearman(v, gold) - spearman(u, gold), paired=True,
        vectorized=False, n_resamples=1000, method="percentile", random_state=np.random.default_rng(5),
    ).confidence_interval  # fmt: skip
    assert row["interval"] == pytest.approx([theirs.low, theirs.high], abs=0.02)
    out = capsys.readouterr().out
    assert f"+{100 * row['difference']:.2f}  +{100 * row['interval'][0]:.2f} to +" in out and " *\n" in out
    assert "sentences/s" in out and all(speed > 0 for speed in found["sentences_per_second"])


def test_two_models_have_a_mean_and_no_interval_where_scores_are_not_of_single_examples(
    tiny_folder, root, tmp_path, capsys
):
    options = ["--data-root", str(root), "--task", "stsb", "sickr", "tweet"]
    (alone,) = scores(tiny_folder, *options).values()
    capsys.readouterr()
    rows = compared(tiny_folder, tiny_folder, tmp_path / "both.json", *options)["tasks"]
    assert rows["stsb"]["interval"] is None  # some resamples of four pairs have one score only
    assert rows["tweet"]["interval"] is None
    metrics = {"stsb": "spearman", "sickr": "spearman", "tweet": "accuracy"}
    assert all(rows[name]["second"] == alone[name][metric] for name, metric in metrics.items())
    [mean] = [line.split() for line in capsys.readouterr().out.splitlines() if line.split()[:1] == ["mean"]]
    expected = f"{100 * sum(alone[name][metric] for name, metric in metrics.items()) / 3:.2f}"
    assert mean == ["mean", "17", "mean", expected, expected, "+0.00"]


@pytest.mark.parametrize(
    "words, message",
    [
        (["--layer", "all"], "--layer all with two models: give the number of a layer, or name one model"),
        (["--save", "new"], "--save with two models: remove --save, or name one model"),
        (["--isotropy"], "--isotropy with two models: remove --isotropy, or name one model"),
        (["--json", "MODEL/config.json"], "tiny, name another place"),
    ],
)
def test_what_two_models_cannot_have_is_refused_before_they_are_loaded(
    words, message, tiny_folder, monkeypatch
):
    monkeypatch.setattr(evaluate, "load_model", lambda args: pytest.fail("a model was loaded"))
    words = [word.replace("MODEL", str(tiny_folder)) for word in words]
    with pytest.raises(InputError) as error:
        evaluate.main([str(ROOT / "data/tiny"), str(tiny_folder), "--task", "sample", *words])
    assert message in error.value.as_cli_message()


def test_a_second_model_that_is_absent_is_reported_before_the_first_is_scored(tiny_folder, monkeypatch):
    monkeypatch.setattr(evaluate, "compare_models", lambda *args: pytest.fail("a model was scored"))
    with pytest.raises(InputError, match="no folder nowhere"):
        evaluate.main([str(tiny_folder), "nowhere", "--task", "sample"])
