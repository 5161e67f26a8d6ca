"""Training on several machines, by the commands of docs/commands.md; here they are processes on this one."""

import json
import os
import re
import shlex

import pytest
import torch
from conftest import PAIRS, ROOT, WITHOUT_DROPOUT
from processes import run_forked, run_together
from torch.distributed.run import parse_args

from tmft.errors import InputError
from tmft.io.distributed import Processes

PAGE = (ROOT / "docs/commands.md").read_text(encoding="utf-8")
COMMANDS = [line for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines()]


def options_of_the_page() -> list[str]:
    """Return the options of train.py in the two commands of the page, which differ only in the rank."""
    lines = [line for line in COMMANDS if line.startswith("torchrun --nnodes")]
    assert [line.replace("--node-rank 1", "--node-rank 0") for line in lines] == lines[:1] * 2
    launched = [parse_args(shlex.split(line)[1:]) for line in lines]
    assert [(one.nnodes, one.node_rank) for one in launched] == [("2", 0), ("2", 1)]
    return shlex.split(lines[0].split("train.py")[1])


@pytest.fixture
def pretraining(tiny_folder, tmp_path) -> list[str]:
    """The command of the page with a tiny model without dropout; each node has its text and its output."""
    config = json.loads((tiny_folder / "config.json").read_text())
    config |= WITHOUT_DROPOUT
    (tiny_folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    sentences = [sentence for pair in PAIRS for sentence in pair.split("\t")[:2]]
    for name in ("one", "node0", "node1"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "sentences.txt").write_text("\n".join(sentences * 60), encoding="utf-8")
    words = [ROOT / "train.py", *options_of_the_page()]
    words[words.index("--ckpt") + 1] = tiny_folder
    recipe = {"--steps": 8, "--save-steps": 4, "--batch-size": 8, "--gradient-accumulation-steps": 1}
    recipe |= {"--precision": "fp32", "--device": "cpu", "--lr": 1e-3, "--max-length": 24}
    return [str(word) for word in (*words, *(word for option in recipe.items() for word in option))]


@pytest.mark.slow
def test_two_nodes_without_a_shared_disk_have_the_losses_of_one_process(pretraining, tmp_path):
    alone = run_forked(pretraining, [dict(os.environ)], folders=[tmp_path / "one"])
    assert alone.returncode == 0, alone.stderr
    nodes = [tmp_path / "node0", tmp_path / "node1"]
    done = run_together(2, *pretraining[1:], folders=nodes)
    assert done.returncode == 0 and done.stdout.count("step 8/8") == 1, done
    one, two = (
        json.loads((tmp_path / name / "runs/tiny-mlm-seed0/result.json").read_text())
        for name in ("one", "node0")
    )
    assert two["processes"] == 2 and len(two["curve"]) == 3
    for a, b in zip(one["curve"], two["curve"], strict=True):
        assert a["tokens"] == b["tokens"]
        assert a["held_out"] == pytest.approx(b["held_out"], abs=1e-5)
    assert not (nodes[1] / "runs").exists()

    again = run_together(2, *pretraining[1:], folders=nodes)  # the second node still does not start again
    assert again.returncode == 0 and "already finished, kept" in again.stdout, again


@pytest.mark.slow
def test_nodes_with_different_texts_do_not_train(pretraining, tmp_path):
    (tmp_path / "node1/sentences.txt").write_text("a man\n" * 300, encoding="utf-8")
    done = run_together(2, *pretraining[1:], folders=[tmp_path / "node0", tmp_path / "node1"])
    assert done.returncode == 2
    message = (
        "process 1 reads other files than process 0 (text sentences.txt): give every machine the same files"
    )
    assert message in done.stderr and "step 4/8" not in done.stdout


def test_a_folder_that_the_nodes_do_not_share_is_an_error(monkeypatch, tmp_path):
    """`others` stands for what a process on another machine sends."""
    folders = tmp_path / "node0", tmp_path / "node1"
    monkeypatch.setattr(Processes, "broadcast_object", lambda self, value: value or "name")
    for others, is_shared in ((True, True), (False, False)):
        monkeypatch.setattr(Processes, "all_gather_object", lambda self, seen, o=others: [seen, o])
        main = Processes(0, 2, torch.device("cpu"))
        if is_shared:
            main.check_shared_folder(folders[0])
        else:
            with pytest.raises(InputError, match="process 1 does not see what process 0 writes in .*node0"):
                main.check_shared_folder(folders[0])
        assert folders[0].is_dir() and not list(folders[0].iterdir())


def test_processes_compare_the_files_that_they_read(monkeypatch):
    other = {"weights": "b", "only there": "c"}
    monkeypatch.setattr(Processes, "all_gather_object", lambda self, value: [value, other])
    main = Processes(0, 2, torch.device("cpu"))
    main.check_same_files({"weights": "b", "only here": "a"})
    with pytest.raises(InputError, match=r"process 1 reads other files than process 0 \(weights\)"):
        main.check_same_files({"weights": "a", "only here": "a"})
