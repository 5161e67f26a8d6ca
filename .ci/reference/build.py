"""Build the API reference and the pages of docs/ as a web site: `python .ci/reference/build.py [FOLDER]`.

The default folder is site/, which git ignores. Needs pdoc (requirements-dev.txt). A warning is an error,
such as a module that cannot be imported. Open site/index.html; the search needs no server.
"""

import re
import shutil
import sys
import warnings
from pathlib import Path

import markdown2
import pdoc
import pdoc.render
import pdoc.render_helpers

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/*.md", "data/README.md"]
EXTRAS = ["tables", "fenced-code-blocks", "header-ids", "code-friendly"]
# what begins a line of a docstring: "name: ", "a, b: ", "Returns", "Raises", "Source: "
NEW_LINE = re.compile(r"\n(?=\S)((?:\w+, )*\w+(?: and \w+)?: |Returns |Raises )")
PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 0 auto; padding: 1rem; }}
pre, table {{ display: block; overflow-x: auto; }}
pre, code {{ background: #f4f4f4; }}
pre {{ padding: 0.5rem; }}
table {{ border-collapse: collapse; }}
td, th {{ border: 1px solid #ccc; padding: 0.2rem 0.5rem; }}
img {{ max-width: 100%; }}
</style>
<p><a href="{home}">tmft</a></p>
{body}
"""


def module_names() -> list[str]:
    """Return the names of all modules of tmft/, but not those that only start it."""
    paths = [path.relative_to(ROOT).with_suffix("") for path in sorted(ROOT.glob("tmft/**/*.py"))]
    names = [".".join(path.parts).removesuffix(".__init__") for path in paths]
    return [name for name in names if not name.endswith(".__main__")]


def page_titles() -> dict[str, str]:
    """Return {path of a page in the site: its first heading}, in the order in which they are listed."""
    titles = {}
    for pattern in SOURCES:
        for path in sorted(ROOT.glob(pattern)):
            first = path.read_text(encoding="utf-8").partition("\n")[0]
            titles[path.relative_to(ROOT).with_suffix(".html").as_posix()] = first.strip("# ")
    return titles


def write_page(name: str, title: str, site: Path) -> None:
    """Write the page `name` from its Markdown file; a link to a file that the site lacks becomes its text."""
    source = ROOT / Path(name).with_suffix(".md")
    body = markdown2.markdown(source.read_text(encoding="utf-8"), extras=EXTRAS)

    def link(match: re.Match) -> str:
        path, anchor, text = match.groups(default="")
        target = re.sub(r"\.(md|py)$", ".html", path)
        return f'<a href="{target}{anchor}">{text}</a>' if (new.parent / target).is_file() else text

    new = site / name
    body = re.sub(r'<a href="(?!\w+:|#)([^"#]+)(#[^"]*)?">(.*?)</a>', link, body, flags=re.DOTALL)
    home = "../" * name.count("/") + "index.html"
    new.write_text(PAGE.format(title=title, home=home, body=body), encoding="utf-8", newline="\n")


def break_lines(docstring: str) -> str:
    """Return a docstring in Markdown in which each parameter, and what is raised, begins a line."""
    return NEW_LINE.sub(r"  \n\1", docstring)


def build(site: Path) -> int:
    """Write the site into a folder, and return the number of its pages."""
    pages = page_titles()
    pdoc.render.configure(docformat="markdown", template_directory=Path(__file__).parent)
    environment = pdoc.render.env
    environment.globals["pages"] = pages
    environment.filters["to_html"] = lambda docstring: pdoc.render_helpers.to_html(break_lines(docstring))
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        warnings.filterwarnings("ignore", "The module specification .* has already been added")
        pdoc.pdoc(*module_names(), output_directory=site)
    for name in pages:
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).touch()  # so that pages find each other
    for picture in (ROOT / "docs").glob("*.svg"):
        shutil.copy(picture, site / "docs")
    for name, title in pages.items():
        write_page(name, title, site)
    return len(list(site.glob("**/*.html")))


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "site")
    print(f"wrote {build(folder)} pages, begin with {folder / 'index.html'}")
