"""The API reference: built without a warning, a page for each module, links that lead somewhere."""

import re
import subprocess
import sys
from importlib.util import find_spec
from urllib.parse import unquote

import pytest
from conftest import ROOT
from test_rooms import TREES


@pytest.mark.slow
def test_the_reference_has_every_module_and_every_page(tmp_path):
    if find_spec("pdoc") is None:
        pytest.skip("pdoc is not installed (requirements-dev.txt)")
    line = [sys.executable, str(ROOT / ".ci/reference/build.py"), str(tmp_path / "site")]
    done = subprocess.run(line, capture_output=True, encoding="utf-8")
    assert done.returncode == 0, done.stderr
    site = tmp_path / "site"
    pages = {path.relative_to(site).as_posix() for path in site.glob("**/*.html")}
    modules = {f"{name.replace('.', '/')}.html" for name in TREES if not name.endswith("__main__")}
    texts = {f"docs/{path.stem}.html" for path in ROOT.glob("docs/*.md")}
    assert modules | texts | {"README.html", "CONTRIBUTING.html", "index.html"} <= pages
    index = (site / "index.html").read_text(encoding="utf-8")
    assert all(f'href="{page}"' in index for page in modules | texts)
    assert "from_pretrained" in (site / "tmft/sentence_encoder.html").read_text(encoding="utf-8")
    assert "from_pretrained" in (site / "search.js").read_text(encoding="utf-8")
    lost = []
    for page in pages - modules:
        text = (site / page).read_text(encoding="utf-8")
        text = re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL)
        for path in re.findall(r'(?:href|src)="(?!\w+:|#)([^"#]+)', text):
            if not (site / page).parent.joinpath(unquote(path)).exists():
                lost.append((page, path))
    assert not lost
