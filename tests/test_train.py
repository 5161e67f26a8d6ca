"""python train.py: what a run prints, writes, keeps and skips."""

import json
import math
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import PAIRS, ROOT, SENTENCES, embed_columns, tiny_model

import train
from tmft import InputError, SentenceEncoder
from tmft.data import DATA_FOLDER
from tmft.losses.cosine import CosineBCE, CosineMSE
from tmft.metrics import cosines, spearman
from tmft.runs.run_config import FineTuningRecipe
from tmft.runs.run_folder import read_result

DEBERTA = {
    "model_type": "deberta-v2",
    "embedding_size": 24,
    "type_vocab_size": 0,
    "relative_attention": True,
    "position_buckets": 8,
    "norm_rel_ebd": "layer_norm",
    "share_att_key": True,
    "pos_att_type": "p2c|c2p",
    "position_biased_input": False,
}


# ------------------------------------------------------------------------------------- what a run leaves


@pytest.fixture
def run(arguments, tmp_path):
    """The folder of a finished run, of two epochs at layer 2."""
    train.main([*arguments, "--layer", "2"])
    return tmp_path / "runs" / "r-layer2-seed0"


def test_a_run_leaves_its_result(run):
    result = json.loads((run / "result.json").read_text())
    assert result["settings"]["layer"] == 2 and result["arguments"]["lr"] == 1e-3
    assert result["sweep"] == "r" and result["provenance"] == [] and result["settings"]["init_from"] is None
    assert result["parameters"]["paper"] < result["parameters"]["stored"]
    assert {"commit", "versions", "device", "threads"} <= result["environment"].keys()


def test_the_dev_score_of_a_run_is_that_of_the_chosen_epoch(run):
    result = read_result(run)
    assert [epoch["epoch"] for epoch in result["epochs"]] == [1, 2] and result["chosen_epoch"] in (1, 2)
    assert result["dev"] == result["epochs"][result["chosen_epoch"] - 1]["dev"]


def test_the_model_of_a_run_has_the_test_score_of_its_result(run):
    texts = list(zip(*(line.split("\t")[:2] for line in PAIRS), strict=True))
    similarities = cosines(*embed_columns(SentenceEncoder.from_pretrained(run), texts))
    result = read_result(run)
    assert spearman(similarities, [4.5, 2, 3]) == pytest.approx(result["test"]["spearman"])
    assert result["test"]["pairs"] == 3


def test_the_card_of_a_run_has_its_scores(run):
    card = (run / "README.md").read_text()
    assert re.search(r"^\| test, scored once, 3 pairs \| -?[\d.]+ \| -?[\d.]+ \|$", card, re.MULTILINE), card


def test_a_run_prints_what_it_kept_its_epochs_and_a_table(arguments, capsys):
    train.main([*arguments, "--layer", "2"])
    printed = capsys.readouterr().out
    assert "loaded the embeddings and 2 of 4 layers" in printed and "epoch  2/2 | loss 0." in printed
    assert "layer  seeds  dev spearman  test spearman  parameters  s/run" in printed


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{}, DEBERTA], ids=["electra", "deberta"])
def test_the_model_of_a_run_opens_in_sentence_transformers(changes, arguments, tmp_path):
    from sentence_transformers import SentenceTransformer

    tiny_model(**changes).save_pretrained(tmp_path / "this")
    train.main([*arguments, "--ckpt", str(tmp_path / "this"), "--layer", "1"])
    folder = tmp_path / "runs" / "r-layer1-seed0"
    theirs = SentenceTransformer(str(folder), device="cpu").encode(SENTENCES)
    np.testing.assert_allclose(theirs, SentenceEncoder.from_pretrained(folder).encode(SENTENCES), atol=2e-6)


def test_a_sweep_over_a_deberta_saves_layer_0_which_only_tmft_runs(arguments, tmp_path, capsys):
    tiny_model(**DEBERTA).save_pretrained(tmp_path / "deberta")
    train.main([*arguments, "--ckpt", str(tmp_path / "deberta"), "--layer", "0-1"])
    saved = tmp_path / "runs/r-layer0-seed0"
    said = "transformers cannot run"
    assert said in capsys.readouterr().out and said in (saved / "README.md").read_text()
    assert said not in (tmp_path / "runs/r-layer1-seed0/README.md").read_text()
    whole = SentenceEncoder.from_pretrained(saved)
    assert len(whole.encoder.layers) == 0 and whole.encode(SENTENCES).shape == (len(SENTENCES), 24)


# ------------------------------------------------------------------------------ repeating and skipping


def test_a_sweep_skips_what_is_finished_and_reports_mean_and_deviation(arguments, tmp_path, capsys):
    train.main([*arguments, "--layer", "1-2", "--num-seeds", "2"])
    folders = sorted(path.name for path in (tmp_path / "runs").iterdir())
    assert folders == [f"r-layer{layer}-seed{seed}" for layer in (1, 2) for seed in (0, 1)]
    table = capsys.readouterr().out.split("\n\n")[-1]
    assert table.count(" ± ") == 4 and "* best on dev" in table

    for name in ("result.json", "model.safetensors"):
        (tmp_path / "runs" / "r-layer2-seed1" / name).unlink()
    stamp = (tmp_path / "runs/r-layer1-seed0/model.safetensors").stat().st_mtime_ns
    train.main([*arguments, "--layer", "1,2", "--num-seeds", "2"])
    printed = capsys.readouterr().out
    assert printed.count("already finished, kept") == 3

    def scores(text):  # without the column of seconds
        return [line.split()[:9] for line in text.splitlines()[2:]]

    assert scores(printed.split("\n\n")[-1]) == scores(table)
    assert (tmp_path / "runs/r-layer1-seed0/model.safetensors").stat().st_mtime_ns == stamp


def test_the_same_command_twice_gives_the_same_bytes(arguments, tmp_path):
    for name in ("one", "two"):
        train.main([*arguments, "--layer", "2", "--run-name", name])
    one, two = (tmp_path / "runs" / f"{name}-layer2-seed0" / "model.safetensors" for name in ("one", "two"))
    assert one.read_bytes() == two.read_bytes()


# --------------------------------------------------------------------------------------------- options


def test_random_weights_from_the_same_config(arguments, tiny_folder, tmp_path, capsys):
    (tiny_folder / "model.safetensors").unlink()
    train.main([*arguments, "--layer", "1", "--init", "random", "--pooling", "max", "--max-length", "7"])
    assert "random weights: the embeddings" in capsys.readouterr().out
    result = read_result(tmp_path / "runs/r-layer1-seed0")
    assert (result["pooling"], result["max_length"]) == ("max", 7)


@pytest.fixture
def asked(monkeypatch, tmp_path) -> list:
    """Runs that train.py would do; none is done, and none was done before."""
    runs = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(train, "run_all", lambda planned, processes, do: runs.extend(planned))
    return runs


def test_without_arguments_it_prints_the_command_that_it_stands_for(asked, capsys):
    train.main([])
    line = capsys.readouterr().out
    twin = Path(shlex.split(line)[3])
    assert line == f"python train.py --ckpt {twin} --layer all --task sample --lr 3e-4\n"
    assert twin.resolve() == DATA_FOLDER / "twins/mlm-then-rtd"
    assert [run.config.layer for run in asked] == list(range(9))
    assert {(run.data, run.config.recipe) for run in asked} == {("sample", FineTuningRecipe(lr=3e-4))}

    first = [run.config for run in asked]
    asked.clear()
    train.main(shlex.split(line)[2:])
    assert [run.config for run in asked] == first


def test_options_alone_change_the_first_run(asked):
    train.main(["--epochs", "3", "--layer", "2"])
    recipe = FineTuningRecipe(epochs=3, lr=3e-4)
    assert [(run.config.layer, run.config.recipe) for run in asked] == [(2, recipe)]


def test_the_recipe_is_that_of_the_task_unless_told_otherwise(asked, arguments, tiny_data, tmp_path):
    at = arguments.index("--epochs")
    common = [*arguments[:at], "--layer", "0"]

    def recipe(*words):
        asked.clear()
        train.main([*common, *words])
        return asked[0].config.recipe.epochs, asked[0].config.recipe.batch_size

    assert recipe() == (10, 32)
    for split in ("train", "dev", "test"):
        path = tiny_data / f"{split}.tsv"
        path.write_text(
            path.read_text().replace("4.5", "0.9").replace("\t2", "\t0.2").replace("\t3", "\t0.3")
        )
    assert recipe("--task", "wordsim") == (50, 128)
    assert recipe("--task", "wordsim", "--epochs", "2") == (2, 128)


def test_layer_seed_and_recipe_of_a_run_are_those_of_the_command_line(asked, arguments):
    train.main([*arguments, "--layer", "2", "--seed", "7", "--warmup-ratio", "0.5", "--weight-decay", "0"])
    (run,) = asked
    assert (run.config.layer, run.config.seed) == (2, 7)
    assert run.config.recipe == FineTuningRecipe(2, 2, 1e-3, 0.0, 0.5, 1.0, "fp32")


def test_an_objective_and_a_metric_can_be_chosen(arguments, tmp_path, monkeypatch):
    used = []
    forward = CosineBCE.forward
    monkeypatch.setattr(CosineBCE, "forward", lambda *a: used.append("bce") or forward(*a))
    train.main([*arguments, "--layer", "1", "--objective", "cosine_bce", "--selection-metric", "pearson"])
    result = read_result(tmp_path / "runs/r-layer1-seed0")
    assert used and (result["settings"]["task"]["objective"], result["settings"]["task"]["metric"]) == (
        "cosine_bce",
        "pearson",
    )
    pearsons = [epoch["dev"]["pearson"] for epoch in result["epochs"]]
    assert result["dev"]["pearson"] == max(pearsons)
    with pytest.raises(InputError, match="holds a finished run with task .* choose another run_name"):
        train.main([*arguments, "--layer", "1"])


# ---------------------------------------------------------------------------------------- weights of tokens


def test_tokens_weigh_as_they_were_learnt_on_train_and_the_saved_model_scores_the_same(
    arguments, tiny_data, tmp_path
):
    (tiny_data / "train.tsv").write_text(
        "sentence1\tsentence2\tscore\na man\tthe man plays\t4\ndog\ta cat\t1\n"
    )
    train.main([*arguments, "--layer", "2", "--token-weights", "idf"])
    folder = tmp_path / "runs/r-layer2-seed0"
    result, model = read_result(folder), SentenceEncoder.from_pretrained(folder)
    assert result["settings"]["token_weights"] == "idf"
    texts = list(zip(*(line.split("\t")[:2] for line in PAIRS), strict=True))
    found = spearman(cosines(*embed_columns(model, texts)), [4.5, 2, 3])
    assert found == pytest.approx(result["test"]["spearman"])
    expected = SentenceEncoder.from_pretrained(folder)
    expected.set_token_weights("idf", ["a man", "the man plays", "dog", "a cat"])
    np.testing.assert_allclose(model.encode(SENTENCES), expected.encode(SENTENCES), atol=2e-6)
    expected.set_token_weights("uniform")
    assert not np.allclose(model.encode(SENTENCES), expected.encode(SENTENCES), atol=1e-3)


def test_a_run_without_weights_says_so_and_differs_from_one_with_them(arguments, tmp_path):
    weights = {"plain": [], "idf": ["--token-weights", "idf"], "all": ["--token-weights", "uniform"]}
    for name, options in weights.items():
        train.main([*arguments, "--layer", "1", "--run-name", name, *options])
    found = {name: read_result(tmp_path / f"runs/{name}-layer1-seed0") for name in weights}
    assert [found[name]["settings"]["token_weights"] for name in found] == [None, "idf", "uniform"]
    assert found["plain"]["epochs"][0]["loss"] == found["all"]["epochs"][0]["loss"]
    assert found["plain"]["epochs"][0]["loss"] != found["idf"]["epochs"][0]["loss"]


def test_a_pooling_that_was_saved_and_takes_no_weights_is_refused(arguments, tiny_folder, tmp_path):
    SentenceEncoder.from_pretrained(tiny_folder, pooling="cls").save_pretrained(tmp_path / "cls")
    with pytest.raises(InputError) as error:
        train.main([*arguments, "--ckpt", str(tmp_path / "cls"), "--token-weights", "idf"])
    message = "--token-weights idf have no effect with --pooling cls: choose pooling mean"
    assert error.value.as_cli_message() == message


@pytest.mark.parametrize("more", [[], ["--objective", "softmax"]], ids=["as it is", "with an objective"])
def test_a_task_that_is_not_trained_is_refused_in_one_line(more, arguments, tiny_data, tmp_path):
    for split in ("train", "dev", "test"):
        (tiny_data / f"{split}.tsv").write_text("text\tlabel\na cat\t1\na dog\t0\n")
    with pytest.raises(InputError) as error:
        train.main([*arguments, "--task", "sst2", *more])
    if not more:
        said = "this task cannot be trained, it has no objective: score it with evaluate.py"
        assert error.value.as_cli_message() == said
    assert "\n" not in str(error.value) and not (tmp_path / "runs").exists()


# -------------------------------------------------------------------------------------- what can happen


def test_a_full_disk_is_one_clear_line_and_leaves_no_torn_file(arguments, tmp_path, monkeypatch):
    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tmft.checkpoints.save.save_file", full)
    with pytest.raises(InputError, match="cannot write .*model.safetensors .*No space left.*: check space"):
        train.main([*arguments, "--layer", "1"])
    assert not (tmp_path / "runs").exists()  # folders that would be empty are not left either


def test_a_diverging_run_has_no_result(arguments, tmp_path):
    with pytest.raises(InputError, match="the loss is nan"):
        train.main([*arguments, "--layer", "1", "--lr", "1e38"])
    assert not (tmp_path / "runs" / "r-layer1-seed0" / "result.json").exists()


def test_a_run_that_diverges_later_keeps_its_best_model(arguments, tmp_path, monkeypatch):
    """Two steps make an epoch; the third loss is not finite."""
    factors = iter([1.0, 1.0, math.nan, math.nan])
    monkeypatch.setattr(
        CosineMSE, "forward", lambda self, u, v, target: next(factors) * (u - v).square().mean()
    )
    with pytest.raises(InputError, match=r"the loss is nan \(epoch 2, .*the best epoch before it is kept"):
        train.main([*arguments, "--layer", "1"])
    folder = tmp_path / "runs" / "r-layer1-seed0"
    assert not (folder / "result.json").exists()
    assert np.isfinite(SentenceEncoder.from_pretrained(folder).encode(SENTENCES)).all()


def test_sweeps_that_are_started_together_share_the_runs_and_end_well(arguments, tmp_path):
    """Each run is done once, by one of them."""
    script = tmp_path / "sweep.py"
    script.write_text(
        f"import sys\nsys.path.insert(0, {str(ROOT)!r})\n"
        "import train, tmft.runs.sweep_plan\n"
        "tmft.runs.sweep_plan.WAITING_INTERVAL = 0.05\n"
        "train.main(sys.argv[1:])\n",
        encoding="utf-8",
    )
    command = [sys.executable, script, *arguments, "--layer", "all", "--epochs", "3"]
    sweeps = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT)
        for _ in range(2)
    ]
    printed = [sweep.communicate(timeout=120)[0] for sweep in sweeps]
    assert [sweep.returncode for sweep in sweeps] == [0, 0], printed
    for layer in range(5):
        assert "".join(printed).count(f"r-layer{layer}-seed0: 3 training examples") == 1
    assert all("best on dev" in text for text in printed)
