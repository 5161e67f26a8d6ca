"""A page of text, tables and figures that is written as Markdown, as one HTML file, and as files for papers.

The HTML page loads nothing: its style and script (page.css, page.js) and its figures are in it, and a content
security policy forbids everything else, so a script that got into it through a name would not run. Names of
strangers are shown as plain text.
"""

import base64
import re
from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path
from urllib.parse import quote

from tmft.errors import InputError, sanitize
from tmft.io.atomic import write_file
from tmft.io.files import digest
from tmft.io.formatting import MAX_NAME_LENGTH, escape_markdown, markdown_table, to_json
from tmft.reports.drawing import NEEDS_MATPLOTLIB
from tmft.reports.paper_tables import NUMBERS, csv_table, file_stem, latex_table
from tmft.runs.run_folder import make_folder

MAX_PARAGRAPH, MAX_CELL = 1500, 700  # characters

# Writes a figure to each of the paths; raises InputError if it cannot.
DrawFunction = Callable[[list[Path]], None]


class Page:
    """A page in a folder, which is created. Raises InputError if nothing can be written there.

    Attributes: tables: {title: lines of the table}, the first line being the heading. notes: sentences that a
    command prints, as it does the tables. files: paths of all files that were written. skipped_figures: a
    message for each figure that could not be drawn.
    """

    def __init__(self, folder: Path, title: str, subtitle: str = ""):
        make_folder(folder)
        self.folder, self.title, self.subtitle = folder, title, subtitle
        self.markdown = [
            f"{line}\n" for line in (f"# {escape_markdown(title)}", escape_markdown(subtitle)) if line
        ]
        self.sections: list[tuple[str, str, list[str]]] = [("", "", [])]  # (id, heading, pieces of HTML)
        self.tables: dict[str, list[list[str]]] = {}
        self.notes: list[str] = []
        self.files: list[Path] = []
        self.skipped_figures: list[str] = []
        self.used_ids = {"content"}

    def add(self, markdown: str, html: str) -> None:
        """Add the same to the page in both forms; "" leaves it out of one."""
        self.markdown += [f"{markdown}\n"] * bool(markdown)
        self.sections[-1][2].append(html)

    def add_section(self, heading: str) -> None:
        """Begin a section, to which the HTML page has a link at its top."""
        self.markdown.append(f"## {escape_markdown(heading)}\n")
        self.sections.append((file_stem(f"section {heading}", self.used_ids), heading, []))

    def add_heading(self, heading: str) -> None:
        """Add a heading within a section."""
        self.add(f"### {escape_markdown(heading)}", f"<h3>{escape_html(heading)}</h3>")

    def add_text(self, paragraph: str, style: str = "") -> None:
        """Add a paragraph of plain text. style: a class of page.css."""
        html = f'<p class="{style}">{escape_html(paragraph, MAX_PARAGRAPH)}</p>'
        self.add(escape_markdown(paragraph, MAX_PARAGRAPH), html)

    def add_bullets(self, items: Sequence[str]) -> None:
        """Add a list of sentences."""
        markdown = "\n".join(f"- {escape_markdown(item, MAX_PARAGRAPH)}" for item in items)
        html = "".join(f"<li>{escape_html(item, MAX_PARAGRAPH)}</li>" for item in items)
        self.add(markdown, f"<ul>{html}</ul>")

    def add_note(self, sentence: str) -> None:
        """Add a warning, which is also printed."""
        self.notes.append(sanitize(sentence))
        self.add_text(sentence, "warning")

    def add_command(self, command: str, label: str) -> None:
        """Add a command that page.js can copy. label: what it repeats."""
        lines = "\n".join(sanitize(line, 6000) for line in command.split("\n"))
        html = re.sub(r"(?<= )--?[a-z][a-z0-9-]*", r"<span>\g<0></span>", escape(lines))  # not broken
        code = f'<code class="copyable" data-name="{escape_html(label)}">{html}</code>'
        self.add(f"```sh\n{lines}\n```", f'<div class="command">{code}</div>')

    def add_table(
        self, title: str, lines: list[list[str]], is_folded: bool = False, best: int | None = None
    ) -> None:
        """Add a table. lines: the cells of each line; the first line is the heading.

        is_folded: whether the table is in the HTML page only, which shows it after a click. best: number of
        the line, from 0 below the heading, to be marked.
        """
        title = sanitize(title, MAX_NAME_LENGTH)
        html = table_to_html(title, lines, best)
        if is_folded:
            self.add("", f"<details><summary>Table: {escape_html(title)}</summary>{html}</details>")
            return
        level = "##" if len(self.sections) == 1 else "###"
        self.add(f"{level} {escape_markdown(title)}\n\n{markdown_table(lines).rstrip()}", html)
        self.tables[title] = lines

    def add_figure(self, title: str, panels: Mapping[str, DrawFunction]) -> None:
        """Draw the panels of a figure, write each as SVG and PDF, and add them to the page side by side.

        title: for those who do not see the figure. panels: {name of the files, without ending: function that
        draws}. What cannot be drawn is left out, and the reason is added to skipped_figures.
        """
        images = []
        for stem, draw in panels.items():
            paths = [self.folder / f"{stem}{ending}" for ending in (".svg", ".pdf")]
            try:
                draw(paths)
            except InputError as error:  # matplotlib is missing, or there is nothing to draw
                reason = str(error) if str(error) == NEEDS_MATPLOTLIB else f"no figure of {title}: {error}"
                self.skipped_figures += [sanitize(reason)] * (sanitize(reason) not in self.skipped_figures)
                continue
            self.files += paths
            self.markdown.append(f"![{escape_markdown(title)}]({quote(paths[0].name)})\n")
            data = base64.b64encode(paths[0].read_bytes()).decode()
            images.append(f'<img alt="{escape_html(title)}" src="data:image/svg+xml;base64,{data}">')
        if images:
            self.add("", f'<figure><div class="panels">{"".join(images)}</div></figure>')

    def write(self, page_name: str, data: object) -> None:
        """Write the page to <folder>/page_name.md, and data, the numbers in its tables, to page_name.json.

        The tables go to <folder>/tables, each as .tex and as .csv.
        """
        self.add_file(f"{page_name}.md", "\n".join(self.markdown))
        self.add_file(f"{page_name}.json", to_json(data))
        used: set[str] = set()
        for title, lines in self.tables.items():
            stem = file_stem(title, used)
            self.add_file(f"tables/{stem}.tex", latex_table(title, lines, label=stem))
            self.add_file(f"tables/{stem}.csv", csv_table(lines))

    def write_html(self, file_name: str, footer: str) -> None:
        """Write the page as one HTML file, with links to the other files. footer: HTML."""
        here = Path(__file__).parent
        css, script = ((here / name).read_text("utf-8").strip() for name in ("page.css", "page.js"))
        names = [escape_html(path.relative_to(self.folder).as_posix()) for path in self.files]
        files = "".join(f'<li><a href="{name}">{name}</a></li>' for name in names)
        skipped = "".join(f'<p class="warning">{escape_html(reason)}</p>' for reason in self.skipped_figures)
        top, *sections = self.sections
        links = "".join(f'<li><a href="#{id}">{escape_html(heading)}</a></li>' for id, heading, _ in sections)
        body = "\n".join(
            f'<section id="{id}">\n<h2>{escape_html(heading)}</h2>\n' + "\n".join(pieces) + "\n</section>"
            for id, heading, pieces in sections
        )
        policy = (
            f"default-src 'none'; style-src '{hash_for_csp(css)}'; script-src '{hash_for_csp(script)}'; "
            "img-src data:; base-uri 'none'"
        )
        self.add_file(
            file_name,
            f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape_html(self.title)}</title>
<style>{css}</style>
</head>
<body>
<a class="skip" href="#content">Skip to the results</a>
<header>
<h1>{escape_html(self.title)}</h1>
<p class="muted">{escape_html(self.subtitle)}</p>
{"".join(top[2])}
{skipped}
</header>
<nav aria-label="Contents"><ul>{links}</ul></nav>
<main id="content" tabindex="-1">
{body}
<h3>The same as files</h3>
<ul>{files}</ul>
</main>
<footer>{footer}</footer>
<script>{script}</script>
</body>
</html>
""",
        )

    def add_file(self, file_name: str, content: str) -> None:
        """Write content, a text, to a file in the folder."""
        write_file(self.folder / file_name, content)
        self.files.append(self.folder / file_name)


def hash_for_csp(text: str) -> str:
    """Return the name by which a content security policy allows a style or script with this content."""
    return f"sha256-{base64.b64encode(bytes.fromhex(digest(text))).decode()}"


def escape_html(text: str, max_length: int = MAX_NAME_LENGTH) -> str:
    """Return a text as HTML that shows it literally, on one line and cut to max_length characters."""
    return escape(sanitize(text, max_length))


def table_to_html(title: str, lines: Sequence[Sequence[str]], best: int | None) -> str:
    """Return a table that page.js makes sortable; columns without numbers are aligned to the left."""
    kinds = [
        "number" if any(NUMBERS.fullmatch(cell) for cell in cells) else "words"
        for _, *cells in zip(*lines, strict=True)
    ]

    def row(cells: Sequence[str], tag: str) -> str:
        pairs = zip(kinds, cells, strict=True)
        return "".join(f'<{tag} class="{kind}">{escape_html(cell, MAX_CELL)}</{tag}>' for kind, cell in pairs)

    heading, *body = lines
    rows = [
        f'<tr class="{"best" if number == best else ""}">{row(cells, "td")}</tr>'
        for number, cells in enumerate(body)
    ]
    label, table_body = escape_html(title), "".join(rows)
    return (
        f'<p class="caption">{label}</p><div class="scroll" role="region" tabindex="0" aria-label="{label}">'
        f'<table class="sortable" aria-label="{label}"><thead><tr>{row(heading, "th")}</tr></thead>'
        f"<tbody>{table_body}</tbody></table></div>"
    )
