"""A run that is stopped, wherever, ends with the bits of one that was not; one folder has one process."""

import os
import resource
import shutil
import signal
import subprocess
import sys
from dataclasses import asdict, replace

import pytest
import torch
from conftest import ROOT, tiny_model, torchrun

import tmft.training.checkpointing
import train
from tmft.data import TASKS, Examples
from tmft.datasets.cs224n_tasks import COURSE
from tmft.distributed import Processes
from tmft.errors import InputError
from tmft.io.atomic import locked
from tmft.runs.run_folder import lock_run_folder
from tmft.training.checkpointing import Best, State
from tmft.training.loop import Recipe, fit
from tmft.training.multitask import lessons_of

TEXTS = (
    ["a man plays", "the cat eats", "music", "two dogs in the park", "a woman is not in the park"],
    ["the man plays guitar", "a dog eats", "guitar music", "a cat", "a man is in the park"],
)
PAIRS = Examples(TEXTS, [4.5, 2.0, 3.0, 0.5, 1.5])
SENTENCES = Examples(TEXTS[:1], [0, 1, 2, 3, 4])
FAST = Recipe(epochs=3, batch_size=2, lr=1e-2, precision="fp32")
ALONE = Processes(0, 1, torch.device("cpu"))
SEVERAL = {"order": "by-size", "gradients": "project"}


def learn(state, recipe, several=False):
    """A run, or what is left of one -> its weights and epochs."""
    model = tiny_model(untrained=True)
    parts = {"sst5": COURSE["sst5"], "pairs": TASKS["stsb"]} if several else {}
    data = {"sst5": SENTENCES, "pairs": PAIRS} if several else {"": PAIRS}
    task = replace(TASKS["stsb"], parts=parts)
    torch.manual_seed(0)
    lessons = lessons_of(task, model.dimensions, {name: {"train": e, "dev": e} for name, e in data.items()})
    with state:
        epochs = list(fit(model, lessons, recipe, 0, ALONE, state))
    timeless = [
        {key: value for key, value in asdict(epoch).items() if "second" not in key} for epoch in epochs
    ]
    heads = {f"head.{n}": w for lesson in lessons.values() for n, w in lesson.objective.state_dict().items()}
    return model.state_dict() | heads, timeless


@pytest.fixture
def stopping(monkeypatch):
    """Makes the next run stop the k-th time that it asks whether to write its state."""

    due = State.due

    def at(k):
        asked = [0]

        def count(state, step=0):
            asked[0] += 1
            state.asked = asked[0] == k
            return due(state, step)

        monkeypatch.setattr(State, "due", count)

    yield at


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"precision": "bf16", "weight_decay": 0.3},
        {"precision": "fp16"},
        {"optimizer": "adafactor"},
        {"freeze": 1},
        {"chunk": 1},
        {"every_layer": "drawn"},
        SEVERAL,
    ],
    ids=str,
)
def test_a_run_that_is_stopped_again_and_again_ends_with_the_same_bits(changes, tmp_path, stopping):
    recipe, several = replace(FAST, **changes), changes is SEVERAL
    weights, epochs = learn(State(), recipe, several)
    for k in (1, 3, 2, 1):  # the last one goes on in the second epoch
        stopping(k)
        with pytest.raises(KeyboardInterrupt, match="the same command goes on"):
            learn(State(tmp_path / "state.pt", {}, ALONE), recipe, several)
        torch.manual_seed(99)  # what happens between must not matter
    stopping(-1)
    found, again = learn(State(tmp_path / "state.pt", {}, ALONE), recipe, several)
    assert again == epochs
    assert all(torch.equal(found[name], weight) for name, weight in weights.items())


def test_a_run_may_be_stopped_after_each_step_and_each_epoch(tmp_path, stopping):
    weights, epochs = learn(State(), FAST)
    for k in range(1, 4 * FAST.epochs + 1):
        path = tmp_path / f"{k}.pt"
        stopping(k)
        with pytest.raises(KeyboardInterrupt):
            learn(State(path, {}, ALONE), FAST)
        stopping(-1)
        found, again = learn(State(path, {}, ALONE), FAST)
        assert again == epochs, k
        assert all(torch.equal(found[name], weight) for name, weight in weights.items()), k


def test_a_state_is_written_when_its_time_has_come(tmp_path, monkeypatch):
    path, written = tmp_path / "state.pt", []
    learn(State(path, {}, ALONE), FAST)
    assert not path.exists()  # nothing took so long
    monkeypatch.setattr(tmft.training.checkpointing, "SAVE_AFTER", 0.0)
    monkeypatch.setattr(State, "write", lambda state, *place: written.append(place))
    learn(State(path, {}, ALONE), FAST)
    assert len(written) == 3 * 3 + 3  # steps, and ends of epochs


def test_a_signal_waits_for_the_end_of_the_step_and_a_second_one_does_not(tmp_path, capsys):
    before = signal.getsignal(signal.SIGTERM)
    state = State(tmp_path / "state.pt", {"seed": 0}, ALONE)
    with pytest.raises(KeyboardInterrupt, match="is saved, the same command goes on"), state:
        state.read()
        os.kill(os.getpid(), signal.SIGTERM)
        assert state.due() and "stopping after this step" in capsys.readouterr().out
        state.write(1, 2)
    assert State(tmp_path / "state.pt", {}, ALONE).content["place"] == (1, 2)
    assert signal.getsignal(signal.SIGTERM) is before
    with pytest.raises(KeyboardInterrupt), State(tmp_path / "state.pt", {}, ALONE):
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), State(tmp_path / "state.pt", {}, ALONE):
        os.kill(os.getpid(), signal.SIGINT)  # when there was no step any more: the run ends, then the command


@pytest.mark.parametrize("content", [b"", b"abc", b"PK\x03\x04"])
def test_a_state_that_is_none_is_refused(tmp_path, content):
    (tmp_path / "state.pt").write_bytes(content)
    with pytest.raises(InputError, match=r"state.pt cannot be read \(.*\): remove it to start anew"):
        State(tmp_path / "state.pt", {}, ALONE)
    whole = {"settings": {}, "place": [1], "parts": [], "streams": []}
    for key, value in (("settings", 1), ("place", {}), ("parts", None), ("streams", "x")):
        torch.save(whole | {key: value}, tmp_path / "state.pt")
        with pytest.raises(InputError, match="of another version"):
            State(tmp_path / "state.pt", {}, ALONE)


def test_a_state_of_another_run_is_one_line(tmp_path):
    path = tmp_path / "state.pt"
    state = State(path, {}, ALONE)
    state.read(torch.nn.Linear(2, 2), best=Best(torch.nn.Linear(2, 2)))
    state.write()
    for part, best in ((torch.nn.Linear(3, 2), torch.nn.Linear(2, 2)), (None, torch.nn.Linear(3, 3))):
        other = State(path, {}, ALONE)
        with pytest.raises(InputError, match="is not the state of this run .*: remove it to start anew"):
            other.read(part, best=Best(best))
            other.take_up()


def test_the_best_of_nothing_but_nan_is_the_first():
    best = Best(torch.nn.Linear(1, 1))
    assert [best.take(metric) for metric in (float("nan"), float("nan"), 0.1, 0.1, float("nan"), 0.2)] == [
        True, False, True, False, False, True,
    ]  # fmt: skip


def test_a_disk_that_is_full_is_one_line_and_the_state_before_is_kept(tmp_path):
    """The limit of a file's size stands in for the disk."""
    path = tmp_path / "state.pt"
    State(path, {"a": 1}, ALONE).write()
    before, limits = path.read_bytes(), resource.getrlimit(resource.RLIMIT_FSIZE)
    large = State(path, {"a": 1}, ALONE)
    large.read(torch.nn.Linear(1000, 1000))
    heard = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, limits[1]))
    try:
        with pytest.raises(InputError, match=r"cannot write .*state.pt \(.*\): check space and permissions"):
            large.write()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, heard)
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]


# ------------------------------------------------------------------------------------------------ one folder


def test_a_folder_has_one_process_and_a_killed_one_leaves_it_free(tmp_path):
    script = f"""
import sys, time
from pathlib import Path
from tmft.io.atomic import locked
with locked(Path({str(tmp_path)!r})):
    print("in", flush=True)
    time.sleep(60)
"""
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, cwd=ROOT, env=os.environ
    )
    assert process.stdout.readline() == "in\n"
    with pytest.raises(InputError, match="another process is at work in .*: wait for it, or choose"):
        with lock_run_folder(tmp_path, {"seed": 0}, ALONE):
            pass
    process.kill()
    process.communicate()
    with locked(tmp_path), open(tmp_path / "x", "w"):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def test_an_unfinished_run_with_other_settings_is_not_continued(tmp_path, capsys):
    with pytest.raises(KeyboardInterrupt), lock_run_folder(tmp_path, {"lr": 1.0}, ALONE) as state:
        state.read()
        state.asked = True
        state.write()
    with pytest.raises(InputError, match="holds an unfinished run with lr 1.0, now 2.0: choose another name"):
        with lock_run_folder(tmp_path, {"lr": 2.0}, ALONE):
            pass
    assert "goes on" not in capsys.readouterr().out
    with lock_run_folder(tmp_path, {"lr": 1.0}, ALONE) as state:
        assert state.content and "goes on where it was stopped" in capsys.readouterr().out
    assert not (tmp_path / "state.pt").exists()  # the run has ended


SAMPLE = (
    "--ckpt data/twins/discriminator --layer 1 --task sample --lr 3e-4 --epochs 2 --precision fp32".split()
)


def test_a_folder_that_vanishes_after_its_best_epoch_is_not_called_finished(tmp_path, monkeypatch):
    folder = tmp_path / "discriminator-sample-layer1-seed0"
    save = train.save_predictions

    def vanish(lessons, where):
        shutil.rmtree(where)
        save(lessons, where)

    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(train, "save_predictions", vanish)
    with pytest.raises(InputError, match="was removed or emptied while the run was on: start it again"):
        train.main([*SAMPLE, "--runs", str(tmp_path)])
    assert not (folder / "result.json").exists()


@pytest.mark.slow
def test_two_processes_that_share_a_run_are_stopped_and_go_on(tmp_path, monkeypatch):
    """In-batch negatives, so that each step is shared; the second start has what the first one left."""
    monkeypatch.chdir(ROOT)
    words = [*SAMPLE, "--objective", "multiple_negatives_ranking", "--batch-size", "64", "--seed", "1"]
    whole = torchrun(2, *words, "--runs", tmp_path / "whole")
    assert whole.returncode == 0, whole.stderr
    stop = tmp_path / "stop.py"
    stop.write_text(
        f"import sys\nsys.path.insert(0, {str(ROOT)!r})\n"
        "import tmft.training.checkpointing, train\n"
        "due = tmft.training.checkpointing.State.due\n"
        "def third(state, step=0):\n"
        "    state.asked = step == 3\n"
        "    tmft.training.checkpointing.AGREE_EVERY = 1\n"
        "    return due(state, step)\n"
        "tmft.training.checkpointing.State.due = third\n"
        "train.main()\n",
        encoding="utf-8",
    )
    parts = torchrun(2, *words, "--runs", tmp_path / "parts", command=stop)
    folder = tmp_path / "parts" / "discriminator-sample-layer1-seed1"
    assert parts.returncode != 0 and (folder / "state.pt").is_file(), parts.stderr
    again = torchrun(2, *words, "--runs", tmp_path / "parts")
    assert again.returncode == 0, again.stderr
    one = (tmp_path / "whole" / folder.name / "model.safetensors").read_bytes()
    assert one == (folder / "model.safetensors").read_bytes()
