"""What pip installs: all rooms, the commands, what ships of data/; ranges where requirements.txt pins."""

import importlib
import re
import subprocess
import sys
import tomllib

import pytest
from conftest import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PACKAGES = PROJECT["tool"]["setuptools"]["packages"]
ELSEWHERE = {"tmft.commands": ".", "tmft.shipped": "data"}


def test_every_room_is_installed():
    rooms = {f"tmft.{path.parent.name}" for path in ROOT.glob("tmft/*/__init__.py")}
    assert set(PACKAGES) == {"tmft", *rooms, *ELSEWHERE}
    assert PROJECT["tool"]["setuptools"]["package-dir"] == ELSEWHERE


def test_what_ships_is_there():
    for package, patterns in PROJECT["tool"]["setuptools"]["package-data"].items():
        folder = ROOT / ELSEWHERE.get(package, package.replace(".", "/"))
        for pattern in patterns:
            assert list(folder.glob(pattern)), (package, pattern)


def test_the_only_program_is_tmft():
    [(name, target)] = PROJECT["project"]["scripts"].items()
    module, _, function = target.partition(":")
    assert name == "tmft" and callable(getattr(importlib.import_module(module), function))


def test_the_six_packages_and_no_other():
    def named(lines):
        return {re.match(r"[\w-]+", line)[0] for line in lines}

    pins = (ROOT / "requirements.txt").read_text().split()
    assert named(PROJECT["project"]["dependencies"]) == named(pins) and len(pins) == 6
    assert not any("==" in line for line in PROJECT["project"]["dependencies"])


@pytest.mark.slow
def test_an_installed_copy_works_in_another_folder(tmp_path):
    """pip into a folder, without its dependencies; the first run's model and sample come with it."""
    pytest.importorskip("setuptools", minversion="77")
    source = tmp_path / "source"
    files = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if files.returncode:
        pytest.skip("not a git checkout")
    for name in files.stdout.splitlines():
        if (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation"]
    done = subprocess.run(
        [*pip, "--target", "installed", "./source"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    (tmp_path / "user").mkdir()
    environment = {"PYTHONPATH": str(tmp_path / "installed"), "OMP_NUM_THREADS": "1", "PATH": ""}

    def tmft(*words: str) -> str:
        program = "from tmft.cli.entry_points import main; main()"
        done = subprocess.run(
            [sys.executable, "-c", program, *words],
            cwd=tmp_path / "user",
            capture_output=True,
            text=True,
            env=environment,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    first = tmft("train", "--layer", "0", "--epochs", "1", "--device", "cpu")  # without a checkpoint
    assert first.startswith("tmft train --ckpt "), first
    assert [path.name for path in (tmp_path / "user").iterdir()] == ["runs"]
    [run] = map(str, (tmp_path / "user" / "runs").iterdir())
    (tmp_path / "user" / "lines.txt").write_text("A man plays.\nDogs sleep.\n")
    printed = tmft("cka")
    assert printed.startswith("tmft cka ") and ": tmft train --ckpt " in printed and "python" not in printed
    assert "spearman" in tmft("evaluate", run)
    assert "wrote vectors.npy" in tmft("encode", run, "lines.txt", "--out", "vectors.npy")
    assert "Dogs sleep." in tmft("search", run, "a dog", "--corpus", "lines.txt")
    assert "wrote" in tmft("export", run, "exported")
    assert "layer" in tmft("report", "runs")
