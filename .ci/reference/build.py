"""Build the API reference and the pages of docs/ as a web site: `python .ci/reference/build.py [FOLDER]`.

The reference is one page, tmft.html, with the names that tmft/__init__.py exports: the interface. The pages
are grouped as in docs/README.md. The default folder is site/, which git ignores. Needs pdoc
(requirements-dev.txt). A warning is an error, such as a module that cannot be imported. Open
site/index.html; the search, of all pages, needs no server.
"""

import json
import re
import shutil
import sys
import warnings
from html import escape, unescape
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import markdown2
import pdoc
import pdoc.doc
import pdoc.render
import pdoc.render_helpers

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parents[1]
sys.path.insert(0, str(ROOT))
import tmft  # noqa: E402

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
<input type="checkbox" id="menu" aria-label="Show the menu">
<header>
<a href="{root}index.html">tmft</a>
<input type="search" placeholder="Search all pages" aria-label="Search all pages">
<label for="menu">Menu</label>
</header>
<nav>
{navigation}
</nav>
<main>
<section id="found" hidden></section>
{body}
</main>
<script src="{root}search_pages.js" data-root="{root}"></script>
"""
HEADING = re.compile(r'<h([1-6]) id="([^"]+)">(.*?)</h[1-6]>', re.DOTALL)
API = "index.html"  # the page with the names of the interface


class Section(NamedTuple):
    """What the search looks through: the part of a page below a heading."""

    address: str
    page: str
    title: str
    text: str


def page_groups() -> dict[str, list[str]]:
    """Return {group: its pages}: the headings and links of docs/README.md, and where one begins."""
    index = (ROOT / "docs/README.md").read_text(encoding="utf-8")
    groups = {"Begin": ["README.html", "docs/README.html", API]}
    for group in index.split("\n## ")[1:]:
        title, _, text = group.partition("\n")
        links = (Path("docs") / link for link in re.findall(r"\]\(([^)#]+\.md)\)", text))
        names = [(ROOT / link).resolve().relative_to(ROOT).with_suffix(".html").as_posix() for link in links]
        listed = [name for names in groups.values() for name in names]
        groups[title] = [name for name in dict.fromkeys(names) if name not in listed]
    return groups


def page_title(name: str) -> str:
    """Return the first heading of a page, from its Markdown file."""
    if name == API:
        return "Reference of the interface"
    source = ROOT / Path(name).with_suffix(".md")
    return source.read_text(encoding="utf-8").partition("\n")[0].strip("# ")


def plain(html: str) -> str:
    """Return the text of a piece of HTML."""
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", html)).split())


def format_navigation(name: str, groups: dict[str, list[str]], body: str) -> str:
    """Return the groups of pages; below the page `name` stand its headings."""
    root, lines = "../" * name.count("/"), []
    for group, pages in groups.items():
        lines.append(f"<h2>{group}</h2>\n<ul>")
        for page in pages:
            title = escape(page_title(page))
            if page == name:
                headings = [
                    f'<li><a href="#{anchor}">{plain(heading)}</a></li>'
                    for level, anchor, heading in HEADING.findall(body)
                    if level in "23"
                ]
                lines.append(f'<li aria-current="page">{title}<ul>{"".join(headings)}</ul></li>')
            else:
                lines.append(f'<li><a href="{root}{page}">{title}</a></li>')
        lines.append("</ul>")
    return "\n".join(lines)


def write_page(name: str, body: str, groups: dict[str, list[str]], site: Path) -> None:
    """Write a page beside the list of all pages.

    A link to a file that the site lacks, such as a notebook that was not executed, becomes its text.
    """

    def link(match: re.Match) -> str:
        path, anchor, text = match.groups(default="")
        target = re.sub(r"\.(md|py|ipynb)$", ".html", path)
        return f'<a href="{target}{anchor}">{text}</a>' if (new.parent / target).is_file() else text

    new = site / name
    body = re.sub(r'<a href="(?!\w+:|#)([^"#]+)(#[^"]*)?">(.*?)</a>', link, body, flags=re.DOTALL)
    navigation = format_navigation(name, groups, body)
    root = "../" * name.count("/")
    page = PAGE.format(title=escape(page_title(name)), root=root, navigation=navigation, body=body)
    new.write_text(page, encoding="utf-8", newline="\n")


def split_into_sections(name: str, body: str) -> list[Section]:
    """Return the sections of a page, each with the text below its heading."""
    parts = HEADING.split(body)[1:]  # level, anchor, heading, text, level, ...
    return [
        Section(f"{name}#{anchor}", page_title(name), plain(heading), plain(text))
        for anchor, heading, text in zip(parts[1::4], parts[2::4], parts[3::4], strict=True)
    ]


def format_interface() -> str:
    """Return the page with the names of the interface and what each is, in HTML."""
    rows = [
        f'<dt><a href="{address}">{name}</a></dt><dd>{pdoc.render_helpers.to_html(summary)}</dd>'
        for name, address, summary in interface()
    ]
    return (
        '<h1 id="tmft">tmft</h1>\n<p>Truncated model fine-tuning: sentence embeddings from the first layers '
        'of a pre-trained model. <a href="README.html">Begin here</a>, or with <a href="docs/README.html">'
        "all pages</a>. These are the names that a program uses; their "
        f'<a href="tmft.html">reference</a> has examples.</p>\n<dl>\n{"".join(rows)}\n</dl>'
    )


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
    pdoc.render.configure(docformat="markdown", template_directory=FOLDER)
    environment = pdoc.render.env
    for name in tmft.__all__:
        vars(tmft)[name] = getattr(tmft, name)  # pdoc sees what is imported
    environment.filters["to_html"] = lambda docstring: pdoc.render_helpers.to_html(mark_parameters(docstring))
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        warnings.filterwarnings("ignore", "The module specification .* has already been added")
        pdoc.pdoc("tmft", r"!tmft\.", output_directory=site)
    groups, bodies = page_groups(), {API: format_interface()}
    for name in chain(*groups.values()):
        if name != API:
            text = (ROOT / Path(name).with_suffix(".md")).read_text(encoding="utf-8")
            bodies[name] = markdown2.markdown(text, extras=EXTRAS)
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).touch()  # so that pages find each other
    for picture in (ROOT / "docs").glob("*.svg"):
        shutil.copy(picture, site / "docs")
    sections = [Section(address, "Interface", name, summary) for name, address, summary in interface()]
    for name, body in bodies.items():
        write_page(name, body, groups, site)
        sections += split_into_sections(name, body) if name != API else []
    code = pdoc.render_helpers.formatter.get_style_defs(".codehilite")
    files = {
        "page.css": (FOLDER / "page.css").read_text(encoding="utf-8") + code,
        "search_pages.js": (FOLDER / "search_pages.js").read_text(encoding="utf-8"),
        "sections.js": f"sections = {json.dumps(sections, ensure_ascii=False)};",
    }
    for name, text in files.items():
        (site / name).write_text(f"{text}\n", encoding="utf-8", newline="\n")
    return len(list(site.glob("**/*.html")))


if __name__ == "__main__":
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "site")
    print(f"wrote {build(folder)} pages, begin with {folder / 'index.html'}")
