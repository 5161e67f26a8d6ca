"""python train.py: what a run prints, writes, keeps and skips."""

import json
import math
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from conftest import DEBERTA, PAIRS, SENTENCES, embed_columns, tiny_model

import train
from tmft import InputError, SentenceEncoder, fine_tune, training_task
from tmft.data import DATA_FOLDER
from tmft.io.atomic import folder_lock
from tmft.loss import CosineMSE
from tmft.metrics import cosines, spearman
from tmft.runs.run_config import FineTuningRecipe
from tmft.runs.run_folder import read_result
from tmft.training_free.static_models import random_static_model

# ------------------------------------------------------------------------------------- what a run leaves


def test_what_a_run_leaves_and_prints(arguments, tmp_path, capsys):
    """Two epochs at layer 2: the dev score is that of the chosen epoch, the test score that of the model."""
    train.main([*arguments, "--layer", "2"])
    printed = capsys.readouterr().out
    assert "loaded the embeddings and 2 of 4 layers" in printed and "epoch  2/2 | loss 0." in printed
    assert "layer  seeds  dev spearman  test spearman  parameters  s/run" in printed
    run = tmp_path / "runs" / "r-layer2-seed0"
    result = json.loads((run / "result.json").read_text())
    assert result["settings"]["layer"] == 2 and result["arguments"]["lr"] == 1e-3
    assert result["sweep"] == "r" and result["provenance"] == [] and result["settings"]["init_from"] is None
    assert result["parameters"]["paper"] < result["parameters"]["stored"]
    assert {"commit", "versions", "device", "threads"} <= result["environment"].keys()
    assert [epoch["epoch"] for epoch in result["epochs"]] == [1, 2] and result["chosen_epoch"] in (1, 2)
    assert result["dev"] == result["epochs"][result["chosen_epoch"] - 1]["dev"]
    texts = list(zip(*(line.split("\t")[:2] for line in PAIRS), strict=True))
    similarities = cosines(*embed_columns(SentenceEncoder.from_pretrained(run), texts))
    assert spearman(similarities, [4.5, 2, 3]) == pytest.approx(result["test"]["spearman"])
    assert result["test"]["pairs"] == 3
    card = (run / "README.md").read_text()
    assert re.search(r"^\| test, scored once, 3 pairs \| -?[\d.]+ \| -?[\d.]+ \|$", card, re.MULTILINE), card


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


# -------------------------------------------------------------------------------------------- --config


def test_a_result_repeats_its_run_to_the_byte(arguments, tmp_path, capsys):
    train.main([*arguments, "--layer", "1-2", "--num-seeds", "2", "--pooling", "max"])
    config = tmp_path / "runs/r-layer2-seed1/result.json"
    train.main(["--config", str(config), "--output-dir", str(tmp_path / "again")])
    one, [two] = config.parent, (tmp_path / "again").iterdir()
    assert two.name == one.name
    assert (one / "model.safetensors").read_bytes() == (two / "model.safetensors").read_bytes()
    first, second = read_result(one), read_result(two)
    assert first["settings"] == second["settings"] and first["test"] == second["test"]
    changed = {key for key in first["arguments"] if first["arguments"][key] != second["arguments"][key]}
    assert changed == {"layer", "num_seeds", "seed", "output_dir"}  # one run of the sweep, elsewhere
    note = "note: other files are read than by the run that --config names: the content of data train has"
    assert note not in capsys.readouterr().out
    with open(Path(arguments[3]) / "train.tsv", "a") as file:
        file.write(f"{PAIRS[-1]}\n")
    train.main(["--config", str(config.parent), "--output-dir", str(tmp_path / "changed")])
    assert note in capsys.readouterr().out


def test_a_result_repeats_a_pre_training(tiny_folder, tmp_path):
    text = tmp_path / "lines.txt"
    text.write_text("a man plays\na dog eats\n" * 30)
    words = ["--task", "mlm", "--from-scratch", str(tiny_folder), "--text", str(text)]
    words += ["--steps", "2", "--max-length", "16"]
    train.main([*words, "--save-fp16", "--run-name", "r", "--output-dir", str(tmp_path / "one")])
    one, two = (tmp_path / name / "r-seed0" for name in ("one", "two"))
    train.main(["--config", str(one / "result.json"), "--output-dir", str(tmp_path / "two")])
    assert (one / "model.safetensors").read_bytes() == (two / "model.safetensors").read_bytes()


def test_options_on_the_command_line_take_precedence_over_those_of_the_run(arguments, tmp_path, request):
    words = "--objective multiple_negatives_ranking --no-symmetric --keep-layers 0,2".split()
    train.main([*arguments, *words, "--num-seeds", "2"])
    [run] = tmp_path.glob("runs/*-seed1")
    asked = request.getfixturevalue("asked")
    for seeds, typed in ("--seed 1", ""), ("", "--lr 1e-4 --num-seeds 3 --matryoshka-dims 8 16"):
        typed = [*typed.split(), "--output-dir", str(tmp_path / "new")]
        train.main([*arguments, *words, *seeds.split(), *typed])
        expected = [(one.config, one.folder) for one in asked]
        asked.clear()
        train.main(["--config", str(run), *typed])
        assert [(one.config, one.folder) for one in asked] == expected and expected
        asked.clear()


def test_data_of_your_own_do_not_train_the_model_for_demonstration(asked, tiny_data):
    message = f"^data {tiny_data}: name the checkpoint to train with ckpt, such as"
    with pytest.raises(InputError, match=message):
        train.main(["--data", str(tiny_data), "--layer", "2"])
    assert not asked


def test_a_result_of_python_has_no_options_to_repeat(tiny_folder, asked, tmp_path):
    columns = [line.split("\t")[:2] for line in PAIRS]
    pairs = [(*texts, score) for texts in columns for score in (4.5, 2, 3, 1)]
    fine_tune(tiny_folder, pairs, layer=1, epochs=1, output_dir=tmp_path / "python")
    [path] = tmp_path.glob("python/*/result.json")
    with pytest.raises(InputError, match="result.json cannot be repeated: its options are not those of"):
        train.main(["--config", str(path)])


# --------------------------------------------------------------------------------------------- options


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


def test_the_recipe_is_that_of_the_task_unless_told_otherwise(asked, arguments, tiny_data, tmp_path):
    at = arguments.index("--epochs")
    common = [*arguments[:at], "--layer", "0"]

    def recipe(*words):
        asked.clear()
        train.main([*common, *words])
        return asked[0].config.recipe.epochs, asked[0].config.recipe.batch_size

    assert recipe() == (10, 32)
    for split in ("train", "dev", "test"):
        (tiny_data / f"{split}.tsv").write_text("sentence1\tsentence2\tscore\na\tcat\t0.9\ndog\ttwo\t0.2\n")
    assert recipe("--task", "wordsim") == (50, 128)
    assert recipe("--task", "wordsim", "--epochs", "2") == (2, 128)


def test_the_epoch_is_chosen_by_the_metric_that_is_named(arguments, tmp_path):
    train.main([*arguments, "--layer", "1", "--objective", "cosine_bce", "--selection-metric", "pearson"])
    result = read_result(tmp_path / "runs/r-layer1-seed0")
    task = result["settings"]["task"]
    assert (task["objective"], task["metric"]) == ("cosine_bce", "pearson")
    assert result["dev"]["pearson"] == max(epoch["dev"]["pearson"] for epoch in result["epochs"])


# ---------------------------------------------------------------------------------------- weights of tokens


def test_tokens_weigh_as_they_were_learnt_on_train(arguments, tiny_data, tmp_path):
    lines = ["sentence1\tsentence2\tscore", "a man\tthe man plays\t4", "dog\ta cat\t1"]
    (tiny_data / "train.tsv").write_text("\n".join(lines) + "\n")
    train.main([*arguments, "--layer", "2", "--token-weights", "idf"])
    model, expected = (SentenceEncoder.from_pretrained(tmp_path / "runs/r-layer2-seed0") for _ in range(2))
    expected.set_token_weights("idf", ["a man", "the man plays", "dog", "a cat"])
    np.testing.assert_allclose(model.encode(SENTENCES), expected.encode(SENTENCES), atol=2e-6)
    expected.set_token_weights("uniform")
    assert not np.allclose(model.encode(SENTENCES), expected.encode(SENTENCES), atol=1e-3)


def test_a_pooling_that_was_saved_and_takes_no_weights_is_refused(arguments, tiny_folder, tmp_path):
    SentenceEncoder.from_pretrained(tiny_folder, pooling="cls").save_pretrained(tmp_path / "cls")
    with pytest.raises(InputError, match="^token_weights idf have no effect with pooling cls: choose"):
        train.main([*arguments, "--ckpt", str(tmp_path / "cls"), "--token-weights", "idf"])


def test_a_static_model_that_could_not_be_saved_is_refused_before_it_is_trained(
    arguments, tiny_folder, tmp_path, capsys
):
    random_static_model(SentenceEncoder.from_pretrained(tiny_folder), 8).save_pretrained(tmp_path / "static")
    with pytest.raises(InputError, match="static model can be saved with the plain mean only"):
        train.main([*arguments, "--ckpt", str(tmp_path / "static"), "--token-weights", "idf"])
    assert "epoch" not in capsys.readouterr().out


# -------------------------------------------------------------------------------------- what can happen


def test_a_full_disk_is_one_clear_line_and_leaves_no_torn_file(arguments, tmp_path, monkeypatch):
    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tmft.checkpoints.save.save_file", full)
    with pytest.raises(InputError, match="cannot write .*model.safetensors .*No space left.*: check space"):
        train.main([*arguments, "--layer", "1"])
    assert not (tmp_path / "runs").exists()  # folders that would be empty are not left either


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


def test_a_run_that_another_process_does_is_named_and_left_to_it(arguments, tmp_path, capsys):
    busy = tmp_path / "runs/r-layer0-seed0"
    busy.mkdir(parents=True)
    with folder_lock(busy), pytest.raises(InputError, match=r"1 of 2 runs failed \(r-layer0-seed0\)"):
        train.main([*arguments, "--layer", "0-1"])
    assert f"{busy}: failed: another process is working in {busy}" in capsys.readouterr().out
    assert not list(busy.iterdir()) and (tmp_path / "runs/r-layer1-seed0/result.json").is_file()


def test_of_undefined_scores_the_last_epoch_is_kept_and_said_and_no_layer_is_best(
    arguments, monkeypatch, capsys
):
    undefined = {"pairs": 3, "spearman": float("nan"), "pearson": float("nan")}
    monkeypatch.setattr(training_task, "compute_metrics", lambda *_: dict(undefined))
    train.main([*arguments, "--layer", "1,2"])
    printed = capsys.readouterr().out
    assert printed.count("at epoch 2, the last, because dev spearman is undefined in each") == 2
    assert "best on dev" not in printed and "nan" in printed
    result = json.loads((Path(arguments[5]) / "r-layer1-seed0/result.json").read_text())
    assert result["chosen_epoch"] == 2 and result["dev"]["spearman"] is None
