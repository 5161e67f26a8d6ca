"""Trackers: an interrupted run leaves what an uninterrupted one logs, and what is missing is one line.

The services are replaced by modules with the functions of theirs that are called.
"""

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace

import pytest
from conftest import PAIRS

import train
from tmft import InputError, fine_tune
from tmft.callbacks import Callback
from tmft.training import checkpointing, trackers

ROWS = [(a, b, float(score)) for a, b, score in (line.split("\t") for line in PAIRS)]
SHORT = {"epochs": 2, "batch_size": 2, "lr": 1e-3, "precision": "fp32", "device": "cpu", "layer": 1}


def fake_tensorboard(log):
    class SummaryWriter:
        def __init__(self, folder, purge_step):
            log[:] = [entry for entry in log if entry[1] < purge_step]  # as TensorBoard does when it reads
            self.add_scalar = lambda name, value, step: log.append((name, step, value))
            self.close = lambda: None

    return {"SummaryWriter": SummaryWriter}


def fake_wandb(log):
    def init(name, config, id, resume, reinit):
        assert (id is None) == (not log) and resume == "allow" and config["lr"] == 1e-3
        run = SimpleNamespace(id="one", step=max((step + 1 for _, step, _ in log), default=0))
        run.finish = lambda: None

        def write(values, step):
            assert step >= run.step and values.pop("train/global_step") == step
            log.extend((key, step, value) for key, value in values.items())

        run.log = write
        return run

    return {"init": init}


def fake_mlflow(log):
    def start_run(run_id, run_name, nested):
        assert (run_id is None) == (not log) and not nested
        return SimpleNamespace(info=SimpleNamespace(run_id="one"))

    def get_metric_history(run_id, key):
        return [SimpleNamespace(step=step) for name, step, _ in log if name == key]

    return {
        "active_run": lambda: None,
        "start_run": start_run,
        "end_run": lambda: None,
        "log_params": lambda values: None,
        "log_metrics": lambda values, step: log.extend((k, step, v) for k, v in values.items()),
        "MlflowClient": lambda: SimpleNamespace(get_metric_history=get_metric_history),
    }


SERVICES = {"tensorboard": fake_tensorboard, "wandb": fake_wandb, "mlflow": fake_mlflow}


class Crash(Callback):
    """Lets the run save its state in its third step, not in the fourth, and ends it in the fifth."""

    def on_step_end(self, state):
        if state.steps.step == 3:
            checkpointing.SAVE_INTERVAL = 1e9
        if state.steps.step == 5:
            raise RuntimeError("crash")


STATE = {"run_id": None, "logged_loss": 0.5, "logged_examples": 20}
WRONG_STATES = {
    "another folder": STATE | {"folder": "/tmp/elsewhere"},
    "a method": STATE | {"write": 1},
    "a key is missing": {"run_id": None, "logged_loss": 0.5},
    "a run id of another type": STATE | {"run_id": 7},
    "a loss that is no number": STATE | {"logged_loss": None},
    "a count that is no number": STATE | {"logged_examples": "20"},
}


@pytest.mark.parametrize("wrong", WRONG_STATES)
@pytest.mark.parametrize("name", trackers.TRACKERS)
def test_a_tracker_takes_from_a_state_only_what_it_has_written(name, wrong, tmp_path):
    tracker = trackers.TRACKERS[name](tmp_path, {})
    before = dict(vars(tracker))
    with pytest.raises(ValueError, match=f"{type(tracker).__name__} has "):
        tracker.load_state_dict(WRONG_STATES[wrong])
    assert vars(tracker) == before
    tracker.load_state_dict({})  # the run began without it
    assert vars(tracker) == before
    tracker.load_state_dict(STATE | {"run_id": "one"})
    assert tracker.state_dict() == STATE | {"run_id": "one"} and tracker.folder == tmp_path


@pytest.mark.parametrize("name", trackers.TRACKERS)
def test_a_resumed_run_logs_what_an_uninterrupted_one_does(name, tiny_folder, tmp_path, monkeypatch):
    logs = {"whole": [], "resumed": []}
    monkeypatch.setattr(trackers, "LOG_EVERY", 2)
    for kind, log in logs.items():
        for module in {name, f"torch.utils.{name}"} if name == "tensorboard" else {name}:
            fake = ModuleType(module)
            fake.__spec__ = ModuleSpec(module, None)
            vars(fake).update(SERVICES[name](log))
            monkeypatch.setitem(sys.modules, module, fake)
        options = {"report_to": name, "output_dir": tmp_path / kind, **SHORT}
        data = ROWS * 4, ROWS, ROWS  # 6 steps in an epoch
        if kind == "resumed":
            monkeypatch.setattr(checkpointing, "SAVE_INTERVAL", 0.0)
            with pytest.raises(RuntimeError, match="crash"):
                fine_tune(tiny_folder, *data, callbacks=[Crash()], **options)
            assert {step for _, step, _ in log} == {2, 4}
        fine_tune(tiny_folder, *data, **options)
    assert logs["resumed"] == logs["whole"]
    loss, score = ("loss", "eval_spearman") if name == "mlflow" else ("train/loss", "eval/spearman")
    assert [step for key, step, _ in logs["whole"] if key == loss] == [2, 4, 6, 8, 10, 12]
    assert [step for key, step, _ in logs["whole"] if key == score] == [6, 12]


def test_the_loss_is_the_mean_since_the_last_entry(tiny_folder, tmp_path, monkeypatch):
    monkeypatch.setattr(trackers, "LOG_EVERY", 1)
    entries = []

    class Memory(trackers.Tracker):
        package = "torch"
        begin_run = end_run = lambda self, *_: None
        write = lambda self, values, step: entries.append(values)  # noqa: E731

    monkeypatch.setitem(trackers.TRACKERS, "memory", Memory)
    options = SHORT | {"epochs": 1}
    result = fine_tune(tiny_folder, ROWS, ROWS, ROWS, report_to="memory", **options)  # batches of 2 and 1
    [run] = result.sweep.layers[1]
    mean = (2 * entries[0]["loss"] + entries[1]["loss"]) / 3
    assert mean == pytest.approx(run["epochs"][0]["loss"], rel=1e-6)
    assert entries[1]["epoch"] == 1 and entries[1]["eval_spearman"] == run["epochs"][0]["dev"]["spearman"]


def test_what_cannot_be_logged_to_is_one_line(tiny_folder, arguments, tmp_path, monkeypatch):
    with pytest.raises(InputError, match="report_to 'tensorbord': choose .* did you mean tensorboard"):
        fine_tune(tiny_folder, ROWS, ROWS, ROWS, report_to="tensorbord")
    monkeypatch.setattr(trackers, "find_spec", lambda name: None)
    with pytest.raises(InputError, match="report_to wandb needs a package: pip install wandb"):
        train.main([*arguments, "--report-to", "wandb"])
    assert not (tmp_path / "runs").exists()
    monkeypatch.setattr(trackers, "find_spec", lambda name: name)
    with pytest.raises(InputError, match="tensorboard writes into the run folders: give output_dir"):
        fine_tune(tiny_folder, ROWS, ROWS, ROWS, report_to=["tensorboard"])
