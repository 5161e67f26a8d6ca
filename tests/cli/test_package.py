"""What pip installs: all packages, the commands, what ships of data/; ranges where requirements.txt pins."""

import importlib
import re
import subprocess
import sys
import tomllib

import pytest
from conftest import ROOT

from tmft.io.files import TORCH_PACKAGES

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PACKAGES = PROJECT["tool"]["setuptools"]["packages"]
ELSEWHERE = {"tmft.commands": ".", "tmft.shipped": "data"}


def test_every_package_is_installed():
    packages = {f"tmft.{path.parent.name}" for path in ROOT.glob("tmft/*/__init__.py")}
    assert set(PACKAGES) == {"tmft", *packages, *ELSEWHERE}
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
    extras = PROJECT["project"]["optional-dependencies"]
    without_torch, with_torch = PROJECT["project"]["dependencies"], extras.pop("torch")
    assert named(without_torch) == {"numpy", "tokenizers"}
    assert named(without_torch) | named(with_torch) == named(pins) and len(pins) == 6
    assert not any("==" in line for line in without_torch + with_torch)
    assert named(with_torch) - {"huggingface-hub"} == set(TORCH_PACKAGES)  # the hub comes with tokenizers
    assert all(packages[0] == "tmft[torch]" for packages in extras.values())


def copy_checkout(folder):
    """Copy the files that git tracks."""
    files = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if files.returncode:
        pytest.skip("not a git checkout")
    for name in files.stdout.splitlines():
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes((ROOT / name).read_bytes())


PIP = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation"]


@pytest.mark.slow
def test_an_editable_install_is_found_beside_a_clone_named_tmft(tmp_path):
    pytest.importorskip("setuptools", minversion="77")
    copy_checkout(tmp_path / "tmft")
    line = [*PIP, "--prefix", "prefix", "-e", "./tmft"]
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    [packages] = (tmp_path / "prefix").glob("**/site-packages")
    script = (
        f"import site; site.addsitedir({str(packages)!r}); from tmft import InputError; print(InputError)"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True)
    assert "InputError" in done.stdout, done.stderr


@pytest.mark.slow
def test_an_installed_copy_works_in_another_folder(tmp_path):
    """pip into a folder, without its dependencies; the first run's model and sample come with it."""
    pytest.importorskip("setuptools", minversion="77")
    source = tmp_path / "source"
    copy_checkout(source)
    done = subprocess.run(
        [*PIP, "--target", "installed", "./source"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    (tmp_path / "user").mkdir()
    environment = {"PYTHONPATH": str(tmp_path / "installed"), "OMP_NUM_THREADS": "1", "PATH": ""}

    (tmp_path / "user" / "lines.txt").write_text("A man plays.\nDogs sleep.\n")
    run = "runs/mlm-then-rtd-sample-layer0-seed0"
    answers = {  # command -> what it prints
        "train --layer 0 --epochs 1 --device cpu": "tmft train --ckpt ",  # without a checkpoint
        "cka": ": tmft train --ckpt ",
        f"evaluate {run}": "spearman",
        f"encode {run} lines.txt --out vectors.npy": "wrote vectors.npy",
        f"export {run} exported": "wrote",
        "report runs": "layer",
        "encode text": "[-0.039",
        "export tiny tiny-exported": "wrote",
    }
    program = """
import sys
from tmft.cli.entry_points import main
for line in sys.argv[1:]:
    sys.argv = ["tmft", *line.split()]
    print(end="\\0")
    main()
"""
    done = subprocess.run(
        [sys.executable, "-c", program, *answers],
        cwd=tmp_path / "user",
        capture_output=True,
        text=True,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    begin, *printed = done.stdout.split("\0")
    for text, expected in zip(printed, answers.values(), strict=True):
        assert expected in text and "python" not in text
    assert begin == "" and printed[0].startswith("tmft train") and printed[1].startswith("tmft cka ")
    names = {path.name for path in (tmp_path / "user").iterdir()}
    assert names == {"lines.txt", "runs", "vectors.npy", "exported", "tiny-exported"}
