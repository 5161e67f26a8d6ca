"""What README.md shows is what the code does: its Python runs, its commands parse, its files exist."""

import re
import shlex
from pathlib import Path

import pytest
import torch

import cka
import evaluate
import train

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
EXPERIMENTS = (ROOT / "docs/experiments.md").read_text(encoding="utf-8")
TWINS = (ROOT / "docs/twins.md").read_text(encoding="utf-8")
LINES = (README + TWINS).replace("\\\n", " ")
COMMANDS = re.findall(
    r"^(?:torchrun \S+ \d |python )(train|evaluate|cka)\.py\b([^#\n]*)", LINES, re.MULTILINE
)
COMMANDS += re.findall(r"`python (train|evaluate|cka)\.py ([^`]*)`", EXPERIMENTS)


def test_the_python_of_the_readme_runs(tiny_folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    method, use = re.findall(r"```python\n(.*?)```", README, re.DOTALL)[:2]
    names = {"input_ids": torch.tensor([[2, 9, 3]]), "attention_mask": torch.ones(1, 3)}
    exec(
        method.replace("google/electra-base-discriminator", str(tiny_folder)).replace("layer=9", "layer=2"),
        names,
    )
    before = names["u"].detach().clone()
    exec(use, names)
    assert names["loss"].item() > 0 and before.shape == (2, 24)
    assert names["u"].shape == (2, 24) and len(names["hidden"]) == 3
    assert (tmp_path / "my-encoder" / "model.safetensors").is_file()


@pytest.mark.parametrize(("name", "words"), COMMANDS, ids=[" ".join(command) for command in COMMANDS])
def test_the_commands_of_the_readme_parse(name, words):
    args = {"train": train, "evaluate": evaluate, "cka": cka}[name].parse_args(shlex.split(words))
    assert args.pooling == ("mean" if name == "cka" else None)


def test_the_commands_are_there():
    assert {name for name, _ in COMMANDS} == {"train", "evaluate", "cka"} and len(COMMANDS) >= 30


def test_the_files_of_the_readme_are_all_there_and_no_module_is_left_out():
    table = README.split("## Files, in reading order")[1].split("\n## ")[0]
    named = set(re.findall(r"`([\w/.-]+(?:\.py|/))`", table))
    assert all((ROOT / name).exists() for name in named)
    modules = {f"tmft/{path.name}" for path in (ROOT / "tmft").glob("*.py")} - {"tmft/__init__.py"}
    assert modules <= named
