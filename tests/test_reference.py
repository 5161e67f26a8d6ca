"""The API reference: built without a warning, all of the interface, links that lead somewhere, a search."""

import re
import subprocess
import sys
from importlib.util import find_spec
from urllib.parse import unquote

import pytest
from browser import Browser
from conftest import ROOT

import tmft

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of the built reference."""
    if find_spec("pdoc") is None:
        pytest.skip("pdoc is not installed (requirements-dev.txt)")
    site = tmp_path_factory.mktemp("reference") / "site"
    line = [sys.executable, str(ROOT / ".ci/reference/build.py"), str(site)]
    done = subprocess.run(line, capture_output=True, encoding="utf-8")
    assert done.returncode == 0, done.stderr
    return site


@pytest.fixture(scope="module")
def browser():
    with Browser() as browser:
        yield browser


def test_the_reference_has_the_interface_and_every_page(site):
    pages = {path.relative_to(site).as_posix() for path in site.glob("**/*.html")}
    texts = {f"docs/{path.stem}.html" for path in ROOT.glob("docs/*.md")}
    texts |= {"docs/lecture/README.html", "data/README.html"}
    assert texts | {"README.html", "CONTRIBUTING.html", "index.html", "tmft.html"} <= pages
    assert not [page for page in pages if page.startswith("tmft/")]  # nothing else is promised
    index, reference = ((site / name).read_text(encoding="utf-8") for name in ("index.html", "tmft.html"))
    assert all(f'href="{page}"' in index for page in texts)
    for name in [*tmft.__all__, "SentenceEncoder.from_pretrained"]:
        assert f'href="tmft.html#{name}"' in index and f'id="{name}"' in reference, name
    assert "from_pretrained" in (site / "sections.js").read_text(encoding="utf-8")
    lost = []
    for page in pages - {"tmft.html"}:
        text = (site / page).read_text(encoding="utf-8")
        text = re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL)
        for path in re.findall(r'(?:href|src)="(?!\w+:|#)([^"#]+)', text):
            if not (site / page).parent.joinpath(unquote(path)).exists():
                lost.append((page, path))
    assert not lost


def test_parameters_are_in_bold_and_examples_are_code(site):
    text = (site / "tmft.html").read_text(encoding="utf-8")
    assert "<strong>debiased</strong>: " in text
    assert re.search(r'<span class="gp">&gt;&gt;&gt; </span>.*linear_cka', text)
    assert "Initialize internal Module state" not in text


@pytest.mark.parametrize("width", [360, 1280])
def test_no_page_is_wider_than_the_window(width, site, browser):
    for page in ("index.html", "CONTRIBUTING.html", "docs/checkpoints.html", "tmft.html"):
        browser.open(site / page, width=width)
        assert browser.evaluate("document.documentElement.scrollWidth") <= width, page


def test_the_headings_of_a_page_stand_below_it_in_the_menu(site):
    page = (site / "docs/serving.html").read_text(encoding="utf-8")
    navigation = page.partition("<nav>")[2].partition("</nav>")[0]
    [current] = re.findall(r'<li aria-current="page">(.*?)</ul></li>', navigation)
    anchors = re.findall(r'href="#([^"]+)"', current)
    assert "without-torch" in anchors and all(f'id="{anchor}"' in page for anchor in anchors)


def test_a_phone_has_a_menu_at_the_top(site, browser):
    browser.open(site / "docs/serving.html", width=360)
    height = "document.querySelector('nav').offsetHeight"
    top = browser.evaluate("document.querySelector('label[for=menu]').getBoundingClientRect().top")
    assert top < 60 and browser.evaluate(height) == 0
    browser.evaluate("document.querySelector('label[for=menu]').click()")
    assert browser.evaluate(height) > 300


@pytest.mark.parametrize(
    ("query", "page", "expected"),
    [
        ("linear_cka", "index.html", "tmft.html#linear_cka"),
        ("quantization four bits", "docs/students.html", "../docs/students.html#in-four-bits"),
        ("gated accept terms", "README.html", "docs/troubleshooting.html#opening-a-model"),
    ],
)
def test_the_search_looks_through_all_pages(query, page, expected, site, browser):
    browser.open(site / page)
    found = browser.evaluate(
        f"""new Promise(resolve => {{
            const box = document.querySelector("input[type=search]");
            const look = () => {{
                const first = document.querySelector("#found a");
                first ? resolve(first.getAttribute("href")) : setTimeout(look, 50);
            }};
            box.dispatchEvent(new Event("focus"));
            box.value = {query!r};
            box.dispatchEvent(new Event("input"));
            look();
        }})"""
    )
    assert found == expected
