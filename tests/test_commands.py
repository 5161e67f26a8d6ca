"""The commands as a user types them: what they print, write, skip and refuse."""

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
from conftest import PAIRS, SENTENCES, command, tiny_model
from sentence_transformers import SentenceTransformer

import evaluate
import tmft.datasets.releases
import train
from tmft import InputError, SentenceEncoder
from tmft.data import TASKS
from tmft.metrics import spearman
from tmft.objectives import CosineMSE
from tmft.runs.folder import bar, clock, mean_and_deviation, summary

ROOT = Path(__file__).resolve().parent.parent


def test_a_run_leaves_a_model_its_card_and_its_result(arguments, tmp_path, capsys):
    train.main([*arguments, "--layer", "2"])
    folder = tmp_path / "runs" / "r-layer2-seed0"
    result = json.loads((folder / "result.json").read_text())
    assert result["settings"]["layer"] == 2 and result["arguments"]["lr"] == 1e-3
    assert [epoch["number"] for epoch in result["epochs"]] == [1, 2] and result["chosen_epoch"] in (1, 2)
    assert result["dev"]["spearman"] == result["epochs"][result["chosen_epoch"] - 1]["dev"]["spearman"]
    assert result["parameters"]["paper"] < result["parameters"]["stored"] and result["test"]["pairs"] == 3
    assert {"commit", "versions", "device", "threads"} <= result["environment"].keys()

    model = SentenceEncoder.load(folder)
    similarities = model.similarities(*zip(*(line.split("\t")[:2] for line in PAIRS), strict=True))
    assert spearman(similarities, [4.5, 2, 3]) == pytest.approx(result["test"]["spearman"])
    theirs = SentenceTransformer(str(folder), device="cpu")
    np.testing.assert_allclose(theirs.encode(SENTENCES), model.encode(SENTENCES), atol=2e-6)
    card = (folder / "README.md").read_text()
    assert re.search(r"^\| test, scored once, 3 pairs \| -?[\d.]+ \| -?[\d.]+ \|$", card, re.MULTILINE), card

    printed = capsys.readouterr().out
    assert "kept the embeddings and 2 of 4 layers" in printed and "epoch  2/2 | loss 0." in printed
    assert "layer  seeds  dev spearman  test spearman  parameters  s/run" in printed


def test_a_sweep_skips_what_is_finished_and_reports_mean_and_deviation(arguments, tmp_path, capsys):
    train.main([*arguments, "--layer", "1-2", "--seeds", "2"])
    folders = sorted(path.name for path in (tmp_path / "runs").iterdir())
    assert folders == [f"r-layer{layer}-seed{seed}" for layer in (1, 2) for seed in (0, 1)]
    table = capsys.readouterr().out.split("\n\n")[-1]
    assert table.count(" ± ") == 4 and "* best on dev" in table

    for name in ("result.json", "model.safetensors"):
        (tmp_path / "runs" / "r-layer2-seed1" / name).unlink()
    stamp = (tmp_path / "runs/r-layer1-seed0/model.safetensors").stat().st_mtime_ns
    train.main([*arguments, "--layer", "1,2", "--seeds", "2"])
    printed = capsys.readouterr().out
    assert (
        printed.count("finished before, kept") == 3
        and printed.split("\n\n")[-1].split("s/run")[0] == table.split("s/run")[0]
    )
    assert (tmp_path / "runs/r-layer1-seed0/model.safetensors").stat().st_mtime_ns == stamp


def test_a_finished_run_with_other_settings_is_not_overwritten(arguments):
    train.main([*arguments, "--layer", "1"])
    with pytest.raises(
        InputError, match="holds a finished run with lr 0.001, now 0.002: choose another --name"
    ):
        train.main([*arguments, "--layer", "1", "--lr", "2e-3"])


def test_the_same_command_twice_gives_the_same_bytes(arguments, tmp_path):
    for name in ("one", "two"):
        train.main([*arguments, "--layer", "2", "--name", name])
    one, two = (tmp_path / "runs" / f"{name}-layer2-seed0" / "model.safetensors" for name in ("one", "two"))
    assert one.read_bytes() == two.read_bytes()


def test_random_weights_from_the_same_config(arguments, tiny_folder, capsys):
    (tiny_folder / "model.safetensors").unlink()
    train.main([*arguments, "--layer", "1", "--init", "random", "--pooling", "max", "--max-length", "7"])
    assert "random weights: the embeddings and 1 layers" in capsys.readouterr().out


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


def test_a_sweep_over_a_deberta_scores_layer_0_and_does_not_save_it(arguments, tmp_path, capsys):
    tiny_model(**DEBERTA).save(tmp_path / "deberta")
    train.main([*arguments, "--ckpt", str(tmp_path / "deberta"), "--layer", "0-1"])
    assert "a DeBERTa of 0 layers is not saved, as transformers cannot run one" in capsys.readouterr().out
    assert [path.name for path in (tmp_path / "runs/r-layer0-seed0").iterdir()] == ["result.json"]
    saved = tmp_path / "runs/r-layer1-seed0"
    theirs = SentenceTransformer(str(saved), device="cpu").encode(SENTENCES)
    np.testing.assert_allclose(theirs, SentenceEncoder.load(saved).encode(SENTENCES), atol=2e-6)


def test_the_first_run_needs_no_arguments():
    args = train.parse_args([])
    assert Path(args.ckpt[0]).is_dir() and (args.layer, args.task) == ("all", "sample")
    assert train.parse_args(["--epochs", "3"]).epochs == 3
    other = train.parse_args(["--ckpt", "x"])
    assert (other.layer, other.task, other.lr) == (None, "stsb", 2e-5)


def test_the_recipe_is_that_of_the_task_unless_told_otherwise():
    def recipe(*words):
        args = train.parse_args(["--ckpt", "x", *words])
        chosen = train.choose_recipe(args, TASKS[args.task])
        return chosen.epochs, chosen.batch_size

    assert recipe() == (10, 32) and recipe("--task", "wordsim") == (50, 128)
    assert recipe("--task", "wordsim", "--epochs", "2") == (2, 128)


def test_an_absent_stsb_is_fetched_after_saying_so(arguments, tiny_data, tmp_path, monkeypatch, capsys):
    def fetch(name):
        assert name == "stsb"
        tiny_data.rename(tmp_path / "data" / "stsb")
        return "wrote it"

    (tmp_path / "data").mkdir()
    for module in (tmft.data, tmft.datasets.releases):
        monkeypatch.setattr(module, "DATA_FOLDER", tmp_path / "data")
    monkeypatch.setattr(tmft.datasets.releases, "get", fetch)
    at = arguments.index("--data")
    train.main([*arguments[:at], *arguments[at + 2 :], "--layer", "0"])
    printed = capsys.readouterr().out
    assert printed.index("stsb is absent: fetching the official release") < printed.index("wrote it")


def test_evaluate_scores_a_run_on_the_task_it_learnt(arguments, tmp_path, capsys):
    train.main([*arguments, "--layer", "2"])
    folder = tmp_path / "runs" / "r-layer2-seed0"
    capsys.readouterr()
    evaluate.main([str(folder), "--json", str(tmp_path / "scores.json")])
    result = json.loads((folder / "result.json").read_text())
    scores = json.loads((tmp_path / "scores.json").read_text())["layers"]["2"]["stsb"]
    assert scores == pytest.approx(result["test"])
    assert f"{100 * scores['spearman']:.2f}" in capsys.readouterr().out


def with_classes(folder: Path, names: tuple[str, ...]) -> None:
    """Four pairs of the given classes in place of the scored ones."""
    pairs = ["a man plays\tmusic", "the cat eats\ta dog eats", "music\tguitar music", "is it?\tnot a cat"]
    lines = ["sentence1\tsentence2\tlabel", *map("\t".join, zip(pairs, names, strict=True))]
    for split in ("train", "dev", "test"):
        (folder / f"{split}.tsv").write_text("\n".join(lines) + "\n")


def test_a_run_with_a_head_is_saved_whole_and_evaluated_alike(arguments, tiny_data, tmp_path, capsys):
    with_classes(tiny_data, ("NEUTRAL", "ENTAILMENT", "CONTRADICTION", "NEUTRAL"))
    train.main([*arguments, "--task", "sicke", "--layer", "1"])
    assert "| dev f1_macro " in capsys.readouterr().out
    folder = tmp_path / "runs" / "r-layer1-seed0"
    result = json.loads((folder / "result.json").read_text())
    assert list(result["dev"]) == ["f1_macro", "accuracy"] and list(result["epochs"][0]["dev"]) == [
        *result["dev"]
    ]
    assert "| split | f1_macro x 100 | accuracy x 100 |" in (folder / "README.md").read_text()
    again = {}
    for split in ("dev", "test"):
        evaluate.main([str(folder), "--split", split, "--json", str(tmp_path / "scores.json")])
        again[split] = json.loads((tmp_path / "scores.json").read_text())["layers"]["1"]["sicke"]
    assert again["test"] == result["test"] and again["dev"] == result["dev"] | {"pairs": 4}
    assert "f1_macro  accuracy" in capsys.readouterr().out
    with pytest.raises(InputError, match="--layer all: the head of softmax fits the layer it learnt"):
        evaluate.main([str(folder), "--layer", "all"])
    train.main([*arguments, "--task", "sicke", "--layer", "1"])
    assert "finished before, kept" in capsys.readouterr().out


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
    result = json.loads((folder / "result.json").read_text())
    dev, test = result["dev"], result["test"]
    assert test["threshold"] == dev["threshold"] and test["accuracy"] == pytest.approx(1 - dev["accuracy"])
    assert f"if its cosine reaches {dev['threshold']:.4f}." in (folder / "README.md").read_text()

    def scores(*words):
        evaluate.main([str(folder), "--json", str(tmp_path / "scores.json"), *words])
        return json.loads((tmp_path / "scores.json").read_text())["layers"]

    (tiny_data / "dev.tsv").unlink()  # the run has its threshold
    assert scores()["1"]["mrpc"] == pytest.approx(test)
    (tiny_data / "dev.tsv").write_text("\n".join(lines) + "\n")
    every = scores("--layer", "all")  # each layer finds its own on dev
    assert every["1"]["mrpc"] == pytest.approx(test) and every["0"]["mrpc"]["threshold"] != test["threshold"]


def test_evaluate_all_layers_is_evaluate_each_layer(tiny_folder, tiny_data, tmp_path, capsys):
    def scores(layer):
        path = tmp_path / "scores.json"
        evaluate.main([str(tiny_folder), "--data", str(tiny_data), "--layer", layer, "--json", str(path)])
        return json.loads(path.read_text())["layers"]

    every = scores("all")
    assert list(every) == ["0", "1", "2", "3", "4"]
    assert len(capsys.readouterr().out.split("\n\n")[1].splitlines()) == 6  # heading and five layers
    for layer in every:
        alone = scores(layer)
        assert list(alone) == [layer] and alone[layer]["stsb"] == pytest.approx(every[layer]["stsb"])


def test_evaluate_pools_a_folder_of_test_files_and_shows_the_mean_beside_it(tiny_folder, tiny_data, capsys):
    for split in ("train", "dev", "test"):
        (tiny_data / f"{split}.tsv").rename(tiny_data / f"part-{split}.tsv")
    evaluate.main([str(tiny_folder), "--data", str(tiny_data), "--task", "sts12"])
    heading, line = capsys.readouterr().out.strip().splitlines()[-2:]
    assert heading.split() == ["task", "pairs", "spearman", "pearson", "mean", "of", "subsets"]
    assert line.split()[:2] == ["sts12", "9"] and line.endswith("(3)")


# ------------------------------------------------------------------- what a user can do wrong, end to end


def test_a_mistake_is_one_line_on_stderr_and_exit_code_2(tiny_folder, tiny_data):
    answer = command("train.py", "--ckpt", str(tiny_folder), "--data", str(tiny_data), "--layer", "14")
    assert answer.returncode == 2 and answer.stdout == ""
    assert (
        answer.stderr == "train.py: layer 14: this checkpoint has 4 layers, choose 0 (embeddings only) to 4\n"
    )


MISTAKES = [
    (["train", "--task", "stsc"], "no task 'stsc': choose from"),
    (["train", "--layer", "two"], "--layer two: write 9, 0-12, 3,6,9 or all"),
    (["train", "--ckpt", "no/where"], "no folder no/where, and its config.json is neither in the cache"),
    (["train", "--max-length", "99"], "max_length 99: choose 3 to 40"),
    (["train", "--device", "cuda:77"], "--device cuda:77: "),
    (["train", "--epochs", "0"], "--epochs 0: choose 1 or more"),
    (["train", "--batch-size", "-1"], "--batch-size -1: "),
    (["train", "--lr", "nan"], "--lr nan: "),
    (["train", "--warmup", "2"], "--warmup 2.0: choose 0 to 1"),
    (["train", "--seeds", "0"], "--seeds 0: choose 1 or more"),
    (["evaluate", "--layer", "two"], "--layer two: write a number, or all"),
    (["evaluate", "--layer", "5"], "layer 5: this checkpoint has 4 layers"),
    (["evaluate", "--task", "stsb", "sts12"], "--data replaces the files of one task"),
    (["evaluate", "--json", "/proc/none/scores.json"], "cannot write /proc/none/scores.json"),
]


@pytest.mark.parametrize(("words", "message"), MISTAKES, ids=[" ".join(m[0]) for m in MISTAKES])
def test_mistakes_in_options(words, message, arguments, tiny_folder, tiny_data, tmp_path):
    name, *options = words
    with pytest.raises(InputError) as error:
        if name == "train":
            train.main([*arguments, *options])
        else:
            evaluate.main([str(tiny_folder), "--data", str(tiny_data), *options])
    assert str(error.value).startswith(message) and "\n" not in str(error.value)
    assert not (tmp_path / "runs").exists()  # nothing half-written


def test_a_run_folder_that_cannot_be_written(arguments, tmp_path):
    (tmp_path / "runs").write_text("a file in the way")
    with pytest.raises(InputError, match="cannot write into .*: check space and permissions"):
        train.main(arguments)


def test_a_full_disk_is_one_clear_line_and_leaves_no_torn_file(arguments, tmp_path, monkeypatch):
    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tmft.checkpoint.save_file", full)
    with pytest.raises(InputError, match="cannot write .*model.safetensors .*No space left.*: check space"):
        train.main([*arguments, "--layer", "1"])
    left = [path.name for path in (tmp_path / "runs" / "r-layer1-seed0").iterdir()]
    assert "model.safetensors" not in left and not any(name.startswith(".writing") for name in left)


def test_a_diverging_run_has_no_result(arguments, tmp_path):
    with pytest.raises(InputError, match="the loss is nan"):
        train.main([*arguments, "--layer", "1", "--lr", "1e38"])
    folder = tmp_path / "runs" / "r-layer1-seed0"
    assert not (folder / "result.json").exists()


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
    assert np.isfinite(SentenceEncoder.load(folder).encode(SENTENCES)).all()


def test_means_deviations_and_clocks():
    assert mean_and_deviation([0.5]) == "50.00" and mean_and_deviation([0.5, 0.7]) == "60.00 ± 14.14"
    assert mean_and_deviation([math.nan]).strip() == "nan" == mean_and_deviation([0.5, math.nan]).strip()
    assert clock(3725.4) == "1:02:05"


def test_a_curve_is_drawn_from_its_smallest_value_to_its_largest():
    curve = [0.60, 0.75, 0.78, math.nan]
    assert [len(bar(curve, i, width=19)) for i in range(4)] == [1, 16, 19, 0]
    assert bar([0.5], 0) == "" == bar([0.5, 0.5], 1)


def test_a_collapsed_run_is_never_the_best_layer():
    def result(layer, dev):
        settings = {"layer": layer, "task": {"metric": "spearman"}}
        scores = {"dev": {"spearman": dev}, "test": {"spearman": 0.5}}
        return scores | {"settings": settings, "parameters": {"stored": 10}, "seconds": 1.0}

    lines = summary([result(1, math.nan), result(2, 0.0), result(3, None)]).splitlines()
    assert lines[2].endswith("* best on dev") and "nan" in lines[1] and "nan" in lines[3]


@pytest.mark.parametrize("name", ["train.py", "evaluate.py", "cka.py", "data/get_data.py"])
def test_help_states_every_default(name):
    answer = command(name, "--help")
    said = " ".join(answer.stdout.split())  # where a line ends depends on the length of the folder's name
    assert answer.returncode == 0 and "default: " in said and answer.stderr == ""
