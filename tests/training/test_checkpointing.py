"""A run that is stopped, wherever, ends with the bits of one that was not; one folder has one process."""

import math
import os
import resource
import shutil
import signal
import subprocess
import sys
from copy import copy
from dataclasses import asdict, replace

import pytest
import torch
from conftest import ALONE, ROOT, fit_with_options, tiny_model
from processes import run_together

import tmft.training.checkpointing
import train
from tmft.data import Examples
from tmft.errors import InputError
from tmft.io.atomic import folder_lock
from tmft.runs import train_run
from tmft.runs.run_config import FineTuningRecipe
from tmft.runs.run_folder import open_run_folder
from tmft.tasks import TASKS
from tmft.training.checkpointing import FORMAT, TrainingCheckpoint, checksum
from tmft.training.multitask import make_training_tasks

TEXTS = (
    ["a man plays", "the cat eats", "music", "two dogs in the park", "a woman is not in the park"],
    ["the man plays guitar", "a dog eats", "guitar music", "a cat", "a man is in the park"],
)
PAIRS = Examples(TEXTS, [4.5, 2.0, 3.0, 0.5, 1.5])
SENTENCES = Examples(TEXTS[:1], [0, 1, 2, 3, 4])
FAST = FineTuningRecipe(epochs=3, batch_size=2, lr=1e-2, precision="fp32")
SEVERAL = {"task_sampling": "sequential", "gradient_surgery": "pcgrad"}


def run(checkpoint, recipe, several=False):
    """A run, or what is left of one -> its weights and epochs."""
    model = tiny_model(untrained=True)
    parts = {"sst5": TASKS["sst5"], "pairs": TASKS["stsb"]} if several else {}
    data = {"sst5": SENTENCES, "pairs": PAIRS} if several else {"": PAIRS}
    task = replace(TASKS["stsb"], subtasks=parts)
    torch.manual_seed(0)
    examples = {name: {"train": e, "dev": e} for name, e in data.items()}
    tasks = make_training_tasks(task, model.dimensions, examples)
    with checkpoint:
        epochs = list(fit_with_options(model, tasks, recipe, 0, checkpoint))
    timeless = [{key: x for key, x in asdict(epoch).items() if "second" not in key} for epoch in epochs]
    heads = {f"head.{n}": w for one in tasks.values() for n, w in one.objective.state_dict().items()}
    return model.state_dict() | heads, timeless


@pytest.fixture
def stopping(monkeypatch):
    """Makes the next run stop the k-th time that it asks whether to save."""

    should_save = TrainingCheckpoint.should_save

    def at(k):
        calls = [0]

        def count(checkpoint, step=0):
            calls[0] += 1
            checkpoint.stop_requested = calls[0] == k
            return should_save(checkpoint, step)

        monkeypatch.setattr(TrainingCheckpoint, "should_save", count)

    yield at


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"precision": "bf16", "weight_decay": 0.3},
        {"precision": "fp16"},
        {"optimizer": "adafactor"},
        {"freeze_layers": 1},
        {"quantization": "int4"},
        {"mini_batch_size": 1},
        {"all_layers": "mean"},
        SEVERAL,
    ],
    ids=str,
)
def test_a_run_that_is_stopped_again_and_again_ends_with_the_same_bits(changes, tmp_path, stopping):
    recipe, several = replace(FAST, **changes), changes is SEVERAL
    weights, epochs = run(TrainingCheckpoint(), recipe, several)
    for k in (1, 3, 2, 1):  # the last one resumes in the second epoch
        stopping(k)
        with pytest.raises(KeyboardInterrupt, match="the same command resumes it"):
            run(TrainingCheckpoint(tmp_path / "state.pt", {}, ALONE), recipe, several)
        torch.manual_seed(99)  # what happens between must not matter
    stopping(-1)
    found, again = run(TrainingCheckpoint(tmp_path / "state.pt", {}, ALONE), recipe, several)
    assert again == epochs
    assert all(torch.equal(found[name], weight) for name, weight in weights.items())


def test_a_run_may_be_stopped_after_each_step_and_each_epoch(tmp_path, stopping):
    weights, epochs = run(TrainingCheckpoint(), FAST)
    for k in range(1, 4 * FAST.epochs + 1):
        path = tmp_path / f"{k}.pt"
        stopping(k)
        with pytest.raises(KeyboardInterrupt):
            run(TrainingCheckpoint(path, {}, ALONE), FAST)
        stopping(-1)
        found, again = run(TrainingCheckpoint(path, {}, ALONE), FAST)
        assert again == epochs, k
        assert all(torch.equal(found[name], weight) for name, weight in weights.items()), k


def test_a_state_is_written_when_its_time_has_come(tmp_path, monkeypatch):
    path, written = tmp_path / "state.pt", []
    run(TrainingCheckpoint(path, {}, ALONE), FAST)
    assert not path.exists()  # nothing took so long
    monkeypatch.setattr(tmft.training.checkpointing, "SAVE_INTERVAL", 0.0)
    monkeypatch.setattr(TrainingCheckpoint, "save", lambda self, **progress: written.append(progress))
    run(TrainingCheckpoint(path, {}, ALONE), FAST)
    assert len(written) == 3 * 3 + 3  # steps, and ends of epochs


def test_a_signal_waits_for_the_end_of_the_step_and_a_second_one_does_not(tmp_path, capsys):
    before = signal.getsignal(signal.SIGTERM)
    checkpoint = TrainingCheckpoint(tmp_path / "state.pt", {"seed": 0}, ALONE)
    with pytest.raises(KeyboardInterrupt, match="is saved, the same command resumes it"), checkpoint:
        checkpoint.load({})
        os.kill(os.getpid(), signal.SIGTERM)
        assert checkpoint.should_save() and "stopping after this step" in capsys.readouterr().out
        checkpoint.save(step=1)
    assert TrainingCheckpoint(tmp_path / "state.pt", {}, ALONE).content["progress"] == {"step": 1}
    assert signal.getsignal(signal.SIGTERM) is before
    with pytest.raises(KeyboardInterrupt), TrainingCheckpoint(tmp_path / "state.pt", {}, ALONE) as checkpoint:
        checkpoint.load({})
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), TrainingCheckpoint(tmp_path / "state.pt", {}, ALONE) as checkpoint:
        checkpoint.load({})
        os.kill(os.getpid(), signal.SIGINT)  # when there was no step any more: the run ends, then the command


def test_a_signal_before_the_first_step_stops_at_once(tmp_path):
    with pytest.raises(KeyboardInterrupt), TrainingCheckpoint(tmp_path / "state.pt", {}, ALONE):
        os.kill(os.getpid(), signal.SIGINT)  # while the model is loaded: there is nothing to save
        pytest.fail("the run goes on")


@pytest.mark.parametrize("content", [b"", b"abc", b"PK\x03\x04"])
def test_a_state_that_is_none_is_refused(tmp_path, content):
    (tmp_path / "state.pt").write_bytes(content)
    with pytest.raises(InputError, match=r"state.pt cannot be read \(.*\): remove it to start again"):
        TrainingCheckpoint(tmp_path / "state.pt", {}, ALONE)
    torch.save({"format": FORMAT + 1, "settings": {}}, tmp_path / "state.pt")
    with pytest.raises(InputError, match="it was written by another version of this code"):
        TrainingCheckpoint(tmp_path / "state.pt", {}, ALONE)
    (tmp_path / "state.pt").unlink()
    (tmp_path / "state.pt").mkdir()
    with pytest.raises(InputError, match=r"state.pt cannot be read \(.*directory.*\): remove it"):
        TrainingCheckpoint(tmp_path / "state.pt", {}, ALONE)


# Values that a damaged state.pt may have in place of any other.
OTHER_VALUES = [None, 5, True, math.nan, "x", [], [1], {"train": "b"}, torch.ones(0), torch.ones(3)]


def entries(value, path=()):
    """The keys that lead to each entry in nested dicts and lists, with the entry."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, entry in inner:
        yield (*path, key), entry
        yield from entries(entry, (*path, key))


def with_entry(content, path, value):
    """A copy with another value at a path."""
    key, *rest = path
    copied = copy(content)
    copied[key] = with_entry(content[key], rest, value) if rest else value
    return copied


def interrupted(path, stopping, k, recipe=FAST):
    """The content of the state of a run that stopped the k-th time that it asked whether to save."""
    stopping(k)
    with pytest.raises(KeyboardInterrupt):
        run(TrainingCheckpoint(path, {"lr": 0.1}, ALONE, {"data": {"train": "a"}}), recipe)
    stopping(-1)
    return torch.load(path, weights_only=True)


@pytest.mark.parametrize("optimizer", ["adamw", "adafactor"])
def test_no_damaged_state_is_resumed(optimizer, tmp_path, stopping):
    """A state that was changed by accident is known by its checksum. With the checksum of its own, a tensor
    of another shape would be read or written beyond its end, and an entry of another type is a traceback."""
    path, recipe = tmp_path / "state.pt", replace(FAST, optimizer=optimizer)
    whole = interrupted(path, stopping, 3, recipe)
    all_entries = list(entries(whole))
    if optimizer == "adamw":  # the checksum is the same for all
        for number, (place, entry) in enumerate(all_entries[::7]):  # each kind of entry comes many times
            other = OTHER_VALUES[number % len(OTHER_VALUES)]
            if type(other) is not type(entry):
                torch.save(with_entry(whole, place, other), path)
                with pytest.raises(InputError, match="state.pt cannot be read .*: remove it to start again"):
                    TrainingCheckpoint(path, {}, ALONE)
    tensors = [(place, entry) for place, entry in all_entries if isinstance(entry, torch.Tensor)]
    assert len(tensors) > 150
    content = {key: value for key, value in whole.items() if key != "checksum"}
    for number, (place, entry) in enumerate(tensors[::19]):
        others = [entry.flatten()[:-1], entry[None], entry.to(torch.complex64)]
        if place[0] == "progress":
            continue
        changed = with_entry(content, place, others[number % 3])
        torch.save(changed | {"checksum": checksum(changed)}, path)
        with pytest.raises(InputError, match="cannot be read .*: remove it to start again"):
            run(TrainingCheckpoint(path, {}, ALONE), recipe)


def test_no_state_of_an_optimizer_is_taken_for_that_of_other_weights(tmp_path, stopping):
    """Also where somebody has computed the checksum again."""
    path = tmp_path / "state.pt"
    content = interrupted(path, stopping, 6)  # in the second epoch
    del content["checksum"]
    three_losses = with_entry(content, ("progress", "total_loss"), torch.zeros(3))
    state = content["stateful"]["optimizer"]
    reversed_ids = [group | {"params": group["params"][::-1]} for group in state["param_groups"]]
    others = [state | {"param_groups": reversed_ids}, state | {"state": {-1: state["state"][0]}}]
    others = [with_entry(content, ("stateful", "optimizer"), other) for other in others]
    for changed in [three_losses, *others]:
        torch.save(changed | {"checksum": checksum(changed)}, path)
        with pytest.raises(InputError, match="state.pt cannot be read .*: remove it to"):
            run(TrainingCheckpoint(path, {}, ALONE), FAST)


def test_a_checksum_depends_on_every_number_of_a_large_tensor():
    content = {"weights": [torch.zeros(100, 100)], "progress": {"step": 1}}
    before = checksum(content)
    content["weights"][0][50, 50] = 1e-30
    assert checksum(content) != before


class CreatesFolder:
    """An object whose pickle creates a folder when it is loaded."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


def test_code_in_a_state_is_not_run(tmp_path):
    torch.save({"format": FORMAT, "settings": CreatesFolder(tmp_path / "made")}, tmp_path / "state.pt")
    with pytest.raises(InputError, match=r"state.pt cannot be read \(.*\): remove it to start again"):
        TrainingCheckpoint(tmp_path / "state.pt", {}, ALONE)
    assert not (tmp_path / "made").exists()


def test_a_disk_that_is_full_is_one_line_and_the_state_before_is_kept(tmp_path):
    """The limit of a file's size stands in for the disk."""
    path = tmp_path / "state.pt"
    TrainingCheckpoint(path, {"a": 1}, ALONE).save()
    before, limits = path.read_bytes(), resource.getrlimit(resource.RLIMIT_FSIZE)
    large = TrainingCheckpoint(path, {"a": 1}, ALONE)
    large.load({"model": torch.nn.Linear(1000, 1000)})
    heard = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, limits[1]))
    try:
        with pytest.raises(InputError, match=r"cannot write .*state.pt \(.*\): check space and permissions"):
            large.save()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, heard)
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]


# ------------------------------------------------------------------------------------------------ one folder


def test_a_folder_has_one_process_and_a_killed_one_leaves_it_free(tmp_path):
    script = f"""
import sys, time
from pathlib import Path
from tmft.io.atomic import folder_lock
with folder_lock(Path({str(tmp_path)!r})):
    print("in", flush=True)
    time.sleep(60)
"""
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, cwd=ROOT, env=os.environ
    )
    assert process.stdout.readline() == "in\n"
    with pytest.raises(InputError, match="another process is working in .*: wait for it, or choose"):
        with open_run_folder(tmp_path, {"seed": 0}, {}, ALONE):
            pass
    process.kill()
    process.communicate()
    with folder_lock(tmp_path), open(tmp_path / "x", "w"):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def test_an_unfinished_run_with_other_settings_is_not_continued(tmp_path, capsys):
    with pytest.raises(KeyboardInterrupt), open_run_folder(tmp_path, {"lr": 1.0}, {}, ALONE) as checkpoint:
        checkpoint.load({})
        checkpoint.stop_requested = True
        checkpoint.save(step=1)
    with pytest.raises(InputError, match="an unfinished run with lr 1.0, not 2.0: choose another run_name"):
        with open_run_folder(tmp_path, {"lr": 2.0}, {}, ALONE):
            pass
    assert "resuming" not in capsys.readouterr().out
    with open_run_folder(tmp_path, {"lr": 1.0}, {}, ALONE) as checkpoint:
        assert checkpoint.content and "resuming the interrupted run" in capsys.readouterr().out
    assert not (tmp_path / "state.pt").exists()  # the run has ended


SAMPLE = (
    "--ckpt data/twins/mlm-then-rtd --layer 1 --task sample --lr 3e-4 --epochs 2 --precision fp32".split()
)


def test_a_folder_that_vanishes_after_its_best_epoch_is_not_called_finished(tmp_path, monkeypatch):
    folder = tmp_path / "mlm-then-rtd-sample-layer1-seed0"
    save = train_run.save_predictions

    def vanish(predictions, where):
        shutil.rmtree(where)
        save(predictions, where)

    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(train_run, "save_predictions", vanish)
    with pytest.raises(InputError, match="was removed or emptied during the run: start the run again"):
        train.main([*SAMPLE, "--output-dir", str(tmp_path)])
    assert not (folder / "result.json").exists()


@pytest.mark.slow
def test_two_processes_that_share_a_run_are_stopped_and_go_on(tmp_path, monkeypatch):
    """Pre-training, in which each step is shared; the second start has what the first one left."""
    monkeypatch.chdir(ROOT)
    (tmp_path / "text.txt").write_text("\n".join(f"a man plays {n}" for n in range(200)), encoding="utf-8")
    words = ["--ckpt", "data/twins/mlm-then-rtd", "--task", "mlm", "--text", tmp_path / "text.txt"]
    words += ["--steps", "6", "--batch-size", "16", "--precision", "fp32", "--max-length", "16"]
    whole = run_together(2, *words, "--output-dir", tmp_path / "whole")
    assert whole.returncode == 0, whole.stderr
    stop = tmp_path / "stop.py"
    stop.write_text(
        f"import sys\nsys.path.insert(0, {str(ROOT)!r})\n"
        "import tmft.training.checkpointing, train\n"
        "Checkpoint = tmft.training.checkpointing.TrainingCheckpoint\n"
        "should_save = Checkpoint.should_save\n"
        "def third(checkpoint, step=0):\n"
        "    checkpoint.stop_requested = step == 3\n"
        "    tmft.training.checkpointing.SYNC_EVERY = 1\n"
        "    return should_save(checkpoint, step)\n"
        "Checkpoint.should_save = third\n"
        "train.main()\n",
        encoding="utf-8",
    )
    parts = run_together(2, *words, "--output-dir", tmp_path / "parts", command=stop)
    folder = tmp_path / "parts" / "mlm-then-rtd-mlm-seed0"
    assert parts.returncode != 0 and (folder / "state.pt").is_file(), parts.stderr
    again = run_together(2, *words, "--output-dir", tmp_path / "parts")
    assert again.returncode == 0, again.stderr
    one = (tmp_path / "whole" / folder.name / "model.safetensors").read_bytes()
    assert one == (folder / "model.safetensors").read_bytes()
