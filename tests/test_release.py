"""A release: one version, a citation that has it, and what .ci/release asks of the files that it built."""

import io
import re
import runpy
import tarfile
import tomllib
import zipfile

import pytest
from conftest import ROOT

import tmft

CHECKS = runpy.run_path(str(ROOT / ".ci/release_checks.py"))


def test_the_version_stands_in_one_place():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert "version" not in project["project"] and project["project"]["dynamic"] == ["version"]
    assert project["tool"]["setuptools"]["dynamic"] == {"version": {"attr": "tmft.__version__"}}
    assert CHECKS["version"]() == tmft.__version__


def test_the_citation_and_the_changelog_have_the_version():
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.search(r"^version: (.+)$", citation, re.MULTILINE)[1] == tmft.__version__
    notes = CHECKS["notes"](tmft.__version__)
    assert notes and "\n## " not in notes and not notes.startswith("#")


def test_notes_of_a_version_without_a_section_are_refused(tmp_path):
    (tmp_path / "CHANGELOG.md").write_text(
        "# Changelog\n\n## 2.0\n\nnew\n\n### Options\n\n- a\n\n## 1.0\n\nold\n"
    )
    assert CHECKS["notes"]("2.0", tmp_path) == "new\n\n### Options\n\n- a"
    assert CHECKS["notes"]("1.0", tmp_path) == "old"
    with pytest.raises(SystemExit, match="no section 3.0"):
        CHECKS["notes"]("3.0", tmp_path)


@pytest.fixture
def built(tmp_path):
    """built(lacks, has): a wheel and an sdist of this checkout with a file less or more -> their folder."""

    def build(lacks: str = "", has: str = ""):
        dist = tmp_path / "dist"
        dist.mkdir()
        names = (CHECKS["wheel_files"](ROOT) - {lacks}) | ({has} - {""})
        with zipfile.ZipFile(dist / f"tmft-{tmft.__version__}-py3-none-any.whl", "w") as wheel:
            for name in [*names, f"tmft-{tmft.__version__}.dist-info/METADATA"]:
                wheel.writestr(name, "")
        sources = names | {"pyproject.toml", "README.md", "LICENSE", *CHECKS["COMMAND_FILES"]}
        with tarfile.open(dist / f"tmft-{tmft.__version__}.tar.gz", "w:gz") as sdist:
            for name in sources:
                sdist.addfile(tarfile.TarInfo(f"tmft-{tmft.__version__}/{name}"), io.BytesIO())
        return dist

    return build


# fmt: off
WRONG_FILES = [  # what a wheel lacks, what it has instead, words of the message
    *((name, "", f"the wheel lacks {name}") for name in (
        "tmft/py.typed", "tmft/bert.py", "tmft/shipped/sample/train.tsv", "tmft/shipped/tiny/config.json")),
    *(("", name, f"the wheel has {name}, which is not part of it") for name in (
        "tests/test_cka.py", "tmft/commands/scratch.py", "tmft/notes.txt")),
]
# fmt: on


@pytest.mark.parametrize(("lacks", "has", "message"), WRONG_FILES)
def test_a_wheel_with_other_files_than_the_source_is_refused(built, lacks, has, message):
    with pytest.raises(SystemExit, match=message):
        CHECKS["check_content"](ROOT, built(lacks, has))


def test_a_wheel_with_the_files_of_the_source_passes(built):
    assert CHECKS["check_content"](ROOT, built()).endswith("files in the wheel, as listed")


WORKFLOWS = {path.name: path.read_text(encoding="utf-8") for path in ROOT.glob(".github/workflows/*.yml")}


@pytest.mark.parametrize("name", WORKFLOWS)
def test_actions_are_pinned_by_digest_and_name_their_version(name):
    used = re.findall(r"uses: *(.*)", WORKFLOWS[name])
    assert used and all(re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}  # v\d+\.\d+\.\d+", line) for line in used)


def test_only_the_upload_may_identify_itself_to_the_index_and_it_runs_nothing_of_ours():
    workflow = pytest.importorskip("yaml").safe_load(WORKFLOWS["release.yml"])
    build, publish = workflow["jobs"]["build"], workflow["jobs"]["publish"]
    assert workflow["permissions"] == {"contents": "read"}
    assert publish["permissions"] == {"id-token": "write"} and publish["environment"] == "pypi"
    assert [step["uses"].partition("@")[0] for step in publish["steps"]] == [
        *("actions/download-artifact", "pypa/gh-action-pypi-publish")
    ]
    assert "environment" not in build and "bash .ci/release" in [step.get("run") for step in build["steps"]]
    assert "secrets." not in WORKFLOWS["release.yml"] and "password" not in WORKFLOWS["release.yml"]


LOCKED = (ROOT / ".ci/locked.txt").read_text(encoding="utf-8")


def test_every_locked_version_has_hashes_and_the_file_has_no_address():
    entries = re.split(r"\n(?=\S)", LOCKED.partition("\n")[2].strip())
    entry = r"[a-z0-9-]+==[\w.]+( ; [^\\\n]+)? \\\n( +--hash=sha256:[0-9a-f]{64}( \\\n)?)+"
    assert len(entries) > 100 and all(re.fullmatch(entry, text) for text in entries)
    assert "://" not in LOCKED and "index" not in LOCKED
