"""The pages that people look things up in: calls that are shown run, terms and messages exist."""

import ast
import re

import pytest
from conftest import ROOT

from tmft import SentenceEncoder

CALLS = (ROOT / "docs/coming-from-sentence-transformers.md").read_text(encoding="utf-8")
# What a cell on the right says -> what is run in its place, without a network and a GPU.
OFFLINE = {'"all-MiniLM-L6-v2"': '"data/tiny"', '"cuda"': '"cpu"'}


def calls(page: str, column: int) -> list[str]:
    """The code in one column of the first table of the page."""
    table = page.partition("\n| sentence-transformers | tmft |\n|---|---|\n")[2].partition("\n\n")[0]
    cells = (row.strip("| ").split(" | ")[column] for row in table.split("\n"))
    return [
        code for cell in cells for code in re.findall(r"`([^`]+[)\w])`", cell) if "(" in code or "." in code
    ]


@pytest.mark.slow
def test_every_call_on_the_right_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    [first] = re.findall(r"```python\n(.*?)```", CALLS, re.DOTALL)
    exec(first, names := {})
    codes = calls(CALLS, 1)
    assert len(codes) > 25
    for code in codes:
        if "push_to_hub" in code:  # tests/checkpoints/test_hub.py calls it
            continue
        for name, local in (OFFLINE | {'"my-encoder"': repr(str(tmp_path / "m"))}).items():
            code = code.replace(name, local)
        exec(code, names)
    assert (tmp_path / "m/model.safetensors").is_file()
    assert names["u"].shape == names["v"].shape == (3, 384)
    assert len(names["student"].encoder.layers) == 3


def test_every_name_on_the_left_is_one_of_sentence_transformers():
    theirs = pytest.importorskip("sentence_transformers")
    codes = calls(CALLS, 0)
    names = set(re.findall(r"\bmodel\.(\w+)", " ".join(codes))) - {"max_seq_length"}
    assert names >= {"encode", "similarity", "push_to_hub"}
    assert all(hasattr(theirs.SentenceTransformer, name) for name in names)
    losses = set(re.findall(r"\blosses\.(\w+)", " ".join(codes)))
    module = pytest.importorskip("sentence_transformers.losses")
    assert len(losses) >= 7 and all(hasattr(module, name) for name in losses)


TROUBLES = (ROOT / "docs/troubleshooting.md").read_text(encoding="utf-8")
MESSAGES = [message.replace("\n  ", " ") for message in re.findall(r"^- `([^`]+)`", TROUBLES, re.MULTILINE)]


def texts_of_the_code() -> list[str]:
    """The texts in the code, with … in place of what a format string inserts."""
    texts = []
    for path in [*ROOT.glob("tmft/**/*.py"), *ROOT.glob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                parts = (part.value if isinstance(part, ast.Constant) else "…" for part in node.values)
                texts.append("".join(map(str, parts)))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                texts.append(node.value)
    return texts


CODE = "\n".join(texts_of_the_code())


@pytest.mark.parametrize("message", MESSAGES)
def test_a_message_that_is_explained_is_one_of_the_code(message):
    """Its parts stand in one line of the code, in their order."""
    parts = [re.escape(part) for part in message.strip("…").split("…")]
    assert re.search("[^\n]*".join(parts), CODE), message
    assert max(map(len, message.split("…"))) >= 10, "this fits too many messages"


PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("data/**/README.md")]


def test_names_of_the_interface_and_files_that_the_pages_name_exist():
    """CHANGELOG names what is gone, and two pages show what is not there: other people's names, additions."""
    skipped = ("CHANGELOG.md", "coming-from-sentence-transformers.md", "extending.md")
    model, missing = SentenceEncoder.from_pretrained("tiny"), []
    for path in (path for path in PAGES if path.name not in skipped):
        text = path.read_text(encoding="utf-8")
        names = set(re.findall(r"\bmodel\.(\w+)\(", text))
        files = set(re.findall(r"\b((?:tmft|tests|docs|\.ci)/[\w./-]+\.(?:py|md|json|svg|css|js))\b", text))
        missing += [(path.name, name) for name in names if not hasattr(model, name)]
        missing += [(path.name, name) for name in files if not (ROOT / name).exists()]
    assert not missing


def test_the_changelog_has_at_most_ten_lines_a_version():
    """What a user has to know; the rest is in the history."""
    _, *versions = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").split("\n## ")
    for version in versions:
        name, *lines = filter(None, version.split("\n"))
        assert 1 <= len(lines) <= 10 and max(map(len, lines)) <= 170, name
