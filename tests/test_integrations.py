"""Every block of docs/integrations.md runs as it stands, if its package is installed."""

import re
from importlib.util import find_spec

import pytest
from conftest import ROOT

PAGE = (ROOT / "docs/integrations.md").read_text(encoding="utf-8")
SECTIONS = dict(section.split("\n", 1) for section in PAGE.split("\n## ")[1:])
# Section -> the package that it needs, as it is imported.
PACKAGES = {
    "scikit-learn: the layer as a hyperparameter": "sklearn",
    "FAISS": "faiss",
    "hnswlib": "hnswlib",
    "Chroma": "chromadb",
    "LangChain": "langchain_core",
    "LlamaIndex": "llama_index",
    "Haystack": "haystack",
    "spaCy": "spacy",
    "mteb": "mteb",
}


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
