"""Several runs by one command: chains, sweeps that are shared, interrupted and incomplete."""

from pathlib import Path

import pytest
from conftest import SENTENCES, tiny_config, tiny_model
from processes import run_together

import tmft.runs.sweep_plan
import tmft.runs.train_run
import train
from tmft import InputError, SentenceEncoder
from tmft.checkpoints.model_folder import ModelFolder
from tmft.io.files import read_json
from tmft.models.families import config_from_dict
from tmft.runs.sweep_plan import parse_layers
from tmft.runs.sweeps import group_into_sweeps, read_results


def results(runs: Path) -> dict[str, dict]:
    """Run name -> its result, without what depends on time and hardware."""
    found = {path.parent.name: read_json(path) for path in runs.glob("*/result.json")}
    for result in found.values():
        for key in ("seconds", "environment", "arguments"):
            del result[key]
        for epoch in result["epochs"]:
            del epoch["seconds"], epoch["pairs_per_second"]
    return found


def with_runs(arguments: list[str], folder: Path) -> list[str]:
    at = arguments.index("--output-dir") + 1
    return [*arguments[:at], str(folder), *arguments[at + 1 :]]


# --------------------------------------------------------------------------------------------- layers


@pytest.mark.parametrize(
    ("text", "layers"),
    [
        ("0-4", [0, 1, 2, 3, 4]),
        ("4,1", [4, 1]),
        ("1,1", [1]),
        ("0-2,1-3", [0, 1, 2, 3]),
        ("all", [0, 1, 2, 3, 4]),
        (None, [4]),
    ],
)
def test_layers_are_a_number_a_range_a_list_or_all(text, layers):
    assert parse_layers(text, config_from_dict(tiny_config())) == layers


def test_a_layer_that_does_not_exist_is_refused_before_weights_are_downloaded(arguments, monkeypatch):
    requests, open_folder = [], ModelFolder.open

    def resolve_and_note(where, weights=True):
        requests.append(weights)
        return open_folder(where, weights)

    monkeypatch.setattr(tmft.runs.sweep_plan.ModelFolder, "open", resolve_and_note)
    with pytest.raises(InputError, match="layer 9: this checkpoint has 4 layers"):
        train.main([*arguments, "--layer", "9"])
    assert requests == [False]


# --------------------------------------------------------------------------------------------- chains


def test_a_chain_starts_from_the_earlier_run_and_records_its_provenance(arguments, tmp_path, capsys):
    without_name = [word for word in arguments if word not in ("--run-name", "r")]
    train.main([*without_name, "--layer", "1-2", "--num-seeds", "2", "--task", "stsb"])
    earlier = str(tmp_path / "runs/tiny-pairs-layer{layer}-seed1")
    train.main([*without_name, "--layer", "1,2", "--init-from", earlier, "--lr", "0"])
    folder = tmp_path / "runs/tiny-pairs-pairs-layer2-seed0"
    first = SentenceEncoder.from_pretrained(tmp_path / "runs/tiny-pairs-layer2-seed1")
    assert (
        first.encode(SENTENCES) == SentenceEncoder.from_pretrained(folder).encode(SENTENCES)
    ).all()  # at lr 0

    result = read_json(folder / "result.json")
    assert result["settings"]["init_from"] == earlier.replace("{layer}", "2")
    (past,) = result["provenance"]
    assert past["data"] == "pairs" and past["settings"]["seed"] == 1 and past["test"]["pairs"] == 3
    assert f"weights from {tmp_path}/tiny, then pairs (seed 1)" in capsys.readouterr().out
    assert f"{tmp_path}/tiny, then pairs (seed 1)" in (folder / "README.md").read_text()

    train.main([*without_name, "--ckpt", str(folder), "--run-name", "third"])  # a checkpoint like any other
    assert len(read_json(tmp_path / "runs/third-layer2-seed0/result.json")["provenance"]) == 2


def test_weights_of_another_model_are_refused_before_any_work(arguments, tmp_path):
    tiny_model(hidden_size=12, num_hidden_layers=2).save_pretrained(tmp_path / "narrow")
    tiny_model(model_type="bert", embedding_size=24, num_hidden_layers=2).save_pretrained(tmp_path / "bert")
    for name, message in [
        ("narrow", "has hidden_size 12, not 24: name a run of .*tiny at layer 2"),
        ("bert", "name a run of .*tiny at layer 2"),
        ("tiny", "has num_hidden_layers 4, not 2: name a run of .*tiny at layer 2"),
        ("nowhere", "no folder .*nowhere"),
    ]:
        with pytest.raises(InputError, match=message):
            train.main([*arguments, "--layer", "2", "--init-from", str(tmp_path / name)])
    assert not (tmp_path / "runs").exists()


# --------------------------------------------------------------------------------------------- sweeps


def test_a_sweep_over_several_checkpoints_has_a_table_for_each(arguments, tiny_folder, tmp_path, capsys):
    tiny_model(num_hidden_layers=1).save_pretrained(tmp_path / "small")
    both = ["--ckpt", str(tiny_folder), str(tmp_path / "small"), "--layer", "all", "--epochs", "1"]
    with pytest.raises(InputError, match="^run_name with several values of ckpt: remove run_name"):
        train.main([*arguments, *both])
    train.main([*(word for word in arguments if word not in ("--run-name", "r")), *both])
    folders = {path.name for path in (tmp_path / "runs").iterdir()}
    assert folders == {
        *(f"tiny-pairs-layer{layer}-seed0" for layer in range(5)),
        *(f"small-pairs-layer{layer}-seed0" for layer in range(2)),
    }
    tables = capsys.readouterr().out
    assert tables.count("layer  seeds") == 2 and "\ntiny-pairs\n" in tables and "\nsmall-pairs\n" in tables


@pytest.mark.parametrize("spelling", [str, str.upper], ids=["equal", "upper case"])
def test_two_checkpoints_of_one_name_are_refused_before_any_work(spelling, arguments, tiny_folder, tmp_path):
    """Also if the names differ in case: file systems of macOS and Windows take them for the same."""
    other = tmp_path / "elsewhere" / spelling(tiny_folder.name)
    tiny_model(num_hidden_layers=1).save_pretrained(other)
    without_name = [word for word in arguments if word not in ("--run-name", "r")]
    with pytest.raises(InputError) as error:
        train.main([*without_name, "--ckpt", str(tiny_folder), str(other), "--layer", "0"])
    both = f"{tiny_folder} and {other} would both write {tmp_path}/runs/{other.name}-pairs-layer0-seed0"
    assert error.value.as_cli_message() == f"{both}: run each of them alone, with --run-name"
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("error", [InputError("the loss is nan"), RuntimeError("out of memory")])
def test_a_run_that_fails_is_named_and_does_not_stop_the_others(
    error, arguments, tmp_path, monkeypatch, capsys
):
    fit = tmft.runs.train_run.fit

    def fail_at_layer_1(model, *rest, **options):
        if len(model.encoder.layers) == 1:
            raise error
        return fit(model, *rest, **options)

    monkeypatch.setattr(tmft.runs.train_run, "fit", fail_at_layer_1)
    with pytest.raises(InputError, match=r"1 of 3 runs failed \(r-layer1-seed0\): the reasons are above"):
        train.main([*arguments, "--layer", "0-2"])
    printed = capsys.readouterr()
    assert f"r-layer1-seed0: failed: {error}" in printed.out
    assert ("Traceback" in printed.err) == isinstance(error, RuntimeError)  # a bug keeps its traceback
    assert results(tmp_path / "runs").keys() == {"r-layer0-seed0", "r-layer2-seed0"}
    assert "    0      1 " in printed.out and "    2      1 " in printed.out  # the table has the others

    monkeypatch.setattr(tmft.runs.train_run, "fit", fit)
    train.main([*arguments, "--layer", "0-2"])
    assert capsys.readouterr().out.count("already finished, kept") == 2


def test_a_sweep_stopped_in_the_middle_ends_with_the_same_results(arguments, tmp_path, monkeypatch, capsys):
    """It is stopped when its first result is written, and again in the second epoch of the run after it."""
    sweep = [*arguments, "--layer", "1-2", "--num-seeds", "2"]
    train.main(with_runs(sweep, tmp_path / "alone"))
    stopped = with_runs(sweep, tmp_path / "stopped")

    def write_one(*written):
        write_result(*written)
        raise KeyboardInterrupt

    def fit_one_epoch(*run):
        yield next(fit(*run))
        raise KeyboardInterrupt

    write_result, fit = tmft.runs.train_run.write_result, tmft.runs.train_run.fit
    for name, stop in [("write_result", write_one), ("fit", fit_one_epoch)]:
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(tmft.runs.train_run, name, stop)
            train.main(stopped)
        assert results(tmp_path / "stopped").keys() == {"r-layer1-seed0"}
    capsys.readouterr()
    train.main(stopped)
    assert capsys.readouterr().out.count("already finished, kept") == 1
    assert (
        results(tmp_path / "stopped") == results(tmp_path / "alone") and len(results(tmp_path / "alone")) == 4
    )
    for weights in (tmp_path / "alone").glob("*/model.safetensors"):
        assert (
            weights.read_bytes() == (tmp_path / "stopped" / weights.parent.name / weights.name).read_bytes()
        )


@pytest.mark.slow
def test_a_sweep_shared_by_two_processes_gives_the_same_files_as_by_one(arguments, tmp_path, capsys):
    sweep = [*arguments, "--layer", "0-2", "--num-seeds", "2"]
    both = run_together(2, *with_runs(sweep, tmp_path / "two"))
    assert both.returncode == 0, both.stderr
    train.main(with_runs(sweep, tmp_path / "one"))
    one, two = capsys.readouterr().out, both.stdout
    assert results(tmp_path / "one") == results(tmp_path / "two") and len(results(tmp_path / "two")) == 6
    for weights in (tmp_path / "one").glob("*/model.safetensors"):
        assert weights.read_bytes() == (tmp_path / "two" / weights.parent.name / weights.name).read_bytes()

    def scores(printed):  # the summary, without its column of seconds
        return [line.split()[:-1] for line in printed[printed.index("layer  seeds") :].splitlines()[1:4]]

    assert two.count("layer  seeds") == 1  # one process reports
    assert [row[:6] for row in scores(one)] == [row[:6] for row in scores(two)]


def test_pre_training_is_the_first_link_of_a_chain(arguments, tiny_folder, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("\n".join(SENTENCES * 30), encoding="utf-8")
    common = ["--ckpt", str(tiny_folder), "--output-dir", str(tmp_path / "runs"), "--precision", "fp32"]
    train.main([*common, "--task", "mlm", "--text", str(text), "--steps", "2", "--max-length", "20"])
    folder = tmp_path / "runs/tiny-mlm-seed0"
    train.main([*arguments, "--ckpt", str(folder), "--layer", "2"])
    (past,) = read_json(tmp_path / "runs/r-layer2-seed0/result.json")["provenance"]
    assert past["data"] == "mlm" and past["settings"]["ckpt"] == str(tiny_folder)
    (sweep,) = group_into_sweeps(read_results(tmp_path / "runs"))  # the pre-training run is no row of its own
    assert (sweep.checkpoint, sweep.pretrained_on) == (str(tiny_folder), ["mlm"])
