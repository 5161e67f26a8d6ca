"""Build the API reference and the pages of docs/ as a web site: `python .ci/reference/build.py [FOLDER]`.

The reference is one page, tmft.html, with the names that tmft/__init__.py exports: the interface.
The default folder is site/, which git ignores. Needs pdoc (requirements-dev.txt). A warning is an error,
such as a module that cannot be imported. Open site/index.html; the search needs no server.
"""

import re
import shutil
import sys
import warnings
from html import escape
from pathlib import Path

import markdown2
import pdoc
import pdoc.doc
import pdoc.render
import pdoc.render_helpers

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
import tmft  # noqa: E402

SOURCES = [
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "docs/*.md",
    "docs/research/*.md",
    "docs/lecture/README.md",
    "data/README.md",
]
EXTRAS = ["tables", "fenced-code-blocks", "header-ids", "code-friendly"]
# What begins a line of a docstring, also after a full stop: "Returns", "Raises", or the name of a parameter,
# "name: " or "a, b: ".
NEW_LINE = re.compile(r"(?:\n|(?<=[.)] ))((?:Returns|Raises) )")
NAMES = r"((?:[a-z_][a-z_0-9]*, )*[a-z_][a-z_0-9]*(?: and [a-z_][a-z_0-9]*)?)"
PARAMETER = re.compile(rf"(?:\n|(?<=[.)] )){NAMES}: ")
# torch's docstring of the constructor of every module
NO_DOCSTRING = "Initialize internal Module state, shared by both nn.Module and ScriptModule."
PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<link rel="stylesheet" href="{root}page.css">
<nav>
<p><a href="{root}index.html">tmft: API and search</a></p>
<ul>
{links}
</ul>
</nav>
<main>
{body}
</main>
"""


def page_titles() -> dict[str, str]:
    """Return {path of a page in the site: its first heading}, in the order in which they are listed."""
    titles = {}
    for pattern in SOURCES:
        for path in sorted(ROOT.glob(pattern)):
            first = path.read_text(encoding="utf-8").partition("\n")[0]
            titles[path.relative_to(ROOT).with_suffix(".html").as_posix()] = first.strip("# ")
    return titles


def write_page(name: str, titles: dict[str, str], site: Path) -> None:
    """Write the page `name` from its Markdown file, beside the list of all pages, `titles`.

    A link to a file that the site lacks, such as a notebook that was not executed, becomes its text.
    """
    source, root = ROOT / Path(name).with_suffix(".md"), "../" * name.count("/")
    body = markdown2.markdown(source.read_text(encoding="utf-8"), extras=EXTRAS)

    def link(match: re.Match) -> str:
        path, anchor, text = match.groups(default="")
        target = re.sub(r"\.(md|py|ipynb)$", ".html", path)
        return f'<a href="{target}{anchor}">{text}</a>' if (new.parent / target).is_file() else text

    new = site / name
    body = re.sub(r'<a href="(?!\w+:|#)([^"#]+)(#[^"]*)?">(.*?)</a>', link, body, flags=re.DOTALL)
    links = "\n".join(
        f"<li>{escape(title)}</li>"
        if page == name
        else f'<li><a href="{root}{page}">{escape(title)}</a></li>'
        for page, title in titles.items()
    )
    page = PAGE.format(title=escape(titles[name]), root=root, links=links, body=body)
    new.write_text(page, encoding="utf-8", newline="\n")


def mark_parameters(docstring: str) -> str:
    """Return a docstring in Markdown in which each parameter begins a line, with its name in bold.

    Examples, which are paragraphs that begin with >>>, stay as they are.
    """
    paragraphs = []
    for paragraph in docstring.replace(NO_DOCSTRING, "").split("\n\n"):
        if not paragraph.lstrip().startswith(">>>"):
            paragraph = PARAMETER.sub(r"  \n**\1**: ", f"\n{paragraph}")[1:].lstrip(" \n")
            paragraph = NEW_LINE.sub(r"  \n\1", paragraph)
        paragraphs.append(paragraph)
    return "\n\n".join(paragraphs)


def interface() -> list[tuple[str, str, str]]:
    """Return (name, address in the site, first line of its docstring) for each name of the interface.

    After a class come its methods that have an example.
    """
    found = []
    for one in pdoc.doc.Module.from_name("tmft").members.values():
        methods = [member for member in getattr(one, "own_members", []) if ">>>" in member.docstring]
        for name in [one, *methods]:
            summary = name.docstring.partition("\n")[0] or f"A registry: `tmft/{file_of(one)}` has its rows."
            found.append((name.qualname, f"tmft.html#{name.qualname}", summary))
    return found


def file_of(member: pdoc.doc.Doc) -> str:
    """Return the path below tmft/ of the file that defines a name of the interface."""
    return f"{tmft.MODULES[member.name].replace('.', '/')}.py"


def build(site: Path) -> int:
    """Write the site into a folder, and return the number of its pages."""
    pages = page_titles()
    pdoc.render.configure(docformat="markdown", template_directory=Path(__file__).parent)
    environment = pdoc.render.env
    environment.globals["pages"] = pages
    for name in tmft.__all__:
        vars(tmft)[name] = getattr(tmft, name)  # pdoc sees what is imported
    environment.globals["interface"] = interface()
    environment.filters["to_html"] = lambda docstring: pdoc.render_helpers.to_html(mark_parameters(docstring))
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        warnings.filterwarnings("ignore", "The module specification .* has already been added")
        pdoc.pdoc("tmft", r"!tmft\.", output_directory=site)
    for name in pages:
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).touch()  # so that pages find each other
    for picture in (ROOT / "docs").glob("*.svg"):
        shutil.copy(picture, site / "docs")
    for name in pages:
        write_page(name, pages, site)
    styles = (Path(__file__).parent / "page.css").read_text(encoding="utf-8")
    code = pdoc.render_helpers.formatter.get_style_defs(".codehilite")
    (site / "page.css").write_text(f"{styles}{code}\n", encoding="utf-8", newline="\n")
    return len(list(site.glob("**/*.html")))


if __name__ == "__main__":
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "site")
    print(f"wrote {build(folder)} pages, begin with {folder / 'index.html'}")
