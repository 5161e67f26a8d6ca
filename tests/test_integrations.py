"""Every block and row of docs/integrations.md runs as it stands, if its package is installed."""

import re
from importlib.util import find_spec

import numpy as np
import pytest
from conftest import ROOT, assert_same_embeddings

from tmft import SentenceEncoder

PAGE = (ROOT / "docs/integrations.md").read_text(encoding="utf-8")
SECTIONS = dict(section.split("\n", 1) for section in PAGE.split("\n## ")[1:])
# Section -> the package that it needs, as it is imported.
PACKAGES = {
    "scikit-learn: the layer as a hyperparameter": "sklearn",
    "FAISS": "faiss",
    "hnswlib": "hnswlib",
    "DuckDB": "duckdb",
    "LanceDB": "lancedb",
    "LangChain": "langchain_core",
    "spaCy": "spacy",
    "mteb": "mteb",
}
ROWS = re.findall(r"^\| ([\w-]+) [\d.]+ \| `(.*?)` \| `(.*?)` \|$", PAGE, re.MULTILINE)


def test_every_section_has_one_block_and_the_name_of_its_package():
    assert SECTIONS.keys() == PACKAGES.keys()
    for name, text in SECTIONS.items():
        assert text.count("```python\n") == 1 and "`pip install " in text, name


@pytest.mark.parametrize("section", SECTIONS)
def test_a_block_runs_as_it_stands(section, monkeypatch, capsys):
    """It ends in an assertion of its own."""
    package = PACKAGES[section]
    if find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    [block] = re.findall(r"```python\n(.*?)```", SECTIONS[section], re.DOTALL)
    assert re.search(r"^assert ", block, re.MULTILINE)
    monkeypatch.chdir(ROOT)
    exec(compile(block, f"docs/integrations.md, {section}", "exec"), {"__name__": "__main__"})
    assert capsys.readouterr().out.strip()


def test_the_page_names_five_programs_that_open_a_folder():
    assert len(ROWS) == 5


@pytest.mark.parametrize(("package", "imports", "code"), ROWS, ids=[row[0] for row in ROWS])
def test_a_program_that_opens_a_folder_gives_the_same_embedding(package, imports, code):
    names = {"folder": str(ROOT / "data/tiny"), "text": "A man plays the guitar."}
    try:
        exec(imports, names)
    except ImportError:
        pytest.skip(f"{package} is not installed")
    expected = SentenceEncoder.from_pretrained(names["folder"]).encode([names["text"]])
    assert_same_embeddings(np.array([eval(code, names)]), expected, 1e-5)
