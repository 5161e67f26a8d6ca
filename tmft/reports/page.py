"""A page of text, tables and figures that is written as Markdown, as one HTML file, and as files for papers.

The HTML page loads nothing: its style and script (page.css, page.js) and its figures are in it, and a content
security policy forbids everything else, so a script that got into it through a name would not run. Names of
strangers are shown as plain text.
"""

import base64
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from urllib.parse import quote

from tmft.errors import InputError, sanitize
from tmft.io.atomic import write_file
from tmft.io.files import digest
from tmft.io.formatting import MAX_NAME_LENGTH, escape_markdown, markdown_table, to_json
from tmft.reports.drawing import NEEDS_MATPLOTLIB
from tmft.reports.paper_tables import csv_table, file_stem, latex_table
from tmft.runs.run_folder import make_folder

MAX_PARAGRAPH = 1500  # characters
MAX_CELL = 700
NUMBER = re.compile(r"([+-]?[\d,]*\.?\d+)( ±.*| M| of \d+.*| s| ★.*)?")

# Writes a figure to each of the paths; raises InputError if it cannot.
DrawFunction = Callable[[list[Path]], None]


class Page:
    """A page in a folder, which is created. Raises InputError if nothing can be written there.

    Attributes: tables: {title: lines of the table}, the first line being the heading. printed: those of them
    that a command prints. notes: sentences that a command prints, too. files: paths of all files that were
    written. skipped_figures: a message for each figure that could not be drawn.
    """

    def __init__(self, folder: Path, title: str, subtitle: str = ""):
        make_folder(folder)
        self.folder = folder
        self.title = title
        self.subtitle = subtitle
        self.markdown = [
            f"# {escape_markdown(title)}\n",
            *[f"{escape_markdown(subtitle)}\n"] * bool(subtitle),
        ]
        self.sections: list[tuple[str, str, list[str]]] = [("", "", [])]  # (id, heading, pieces of HTML)
        self.tables: dict[str, list[list[str]]] = {}
        self.printed: dict[str, list[list[str]]] = {}
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
        self.add(f"### {escape_markdown(heading)}", f"<h3>{escape_html_text(heading)}</h3>")

    def add_text(self, paragraph: str, style: str = "") -> None:
        """Add a paragraph of plain text. style: a class of page.css."""
        html = f"<p{class_to_html(style)}>{escape_html_text(paragraph, MAX_PARAGRAPH)}</p>"
        self.add(escape_markdown(paragraph, max_length=MAX_PARAGRAPH), html)

    def add_bullets(self, items: Iterable[str]) -> None:
        """Add a list of sentences."""
        items = list(items)
        markdown = "\n".join(f"- {escape_markdown(item, max_length=MAX_PARAGRAPH)}" for item in items)
        self.add(
            markdown,
            f"<ul>{''.join(f'<li>{escape_html_text(item, MAX_PARAGRAPH)}</li>' for item in items)}</ul>",
        )

    def add_facts(self, facts: dict[str, str]) -> None:
        """Add a list of names and values; empty values are left out."""
        known = {name: value for name, value in facts.items() if value}
        html = "".join(
            f"<dt>{escape_html_text(k)}</dt><dd>{escape_html_text(v, MAX_PARAGRAPH)}</dd>"
            for k, v in known.items()
        )
        markdown = "\n".join(
            f"- {k}: {escape_markdown(v, max_length=MAX_PARAGRAPH)}" for k, v in known.items()
        )
        self.add(markdown, f'<dl class="facts">{html}</dl>')

    def add_note(self, sentence: str) -> None:
        """Add a warning, which is also printed."""
        self.notes.append(sanitize(sentence))
        self.add_text(sentence, "warning")

    def add_command(self, command: str, label: str) -> None:
        """Add a command that page.js can copy. label: what it repeats."""
        code = (
            f'<code class="copyable" data-name="{escape_html_text(label)}">{command_to_html(command)}</code>'
        )
        lines = "\n".join(sanitize(line, 6000) for line in command.split("\n"))
        self.add(f"```sh\n{lines}\n```", f'<div class="whole-command">{code}</div>')

    def add_table(
        self,
        title: str,
        lines: list[list[str]],
        is_printed: bool = True,
        is_folded: bool = False,
        commands: Sequence[str] = (),
        best: int | None = None,
    ) -> None:
        """Add a table. lines: the cells of each line; the first line is the heading.

        is_printed: whether a command prints it. is_folded: whether the HTML page shows it after a click; a
        table that is folded and not printed is nowhere else. commands: that of each line below the heading,
        for a last column of the HTML page. best: number of the line, from 0 below the heading, to be marked.
        """
        title = sanitize(title, MAX_NAME_LENGTH)
        html = table_to_html(title, lines, commands, best)
        if is_folded:
            html = f"<details><summary>Table: {escape_html_text(title)}</summary>{html}</details>"
        is_file = is_printed or not is_folded
        level = "##" if len(self.sections) == 1 else "###"
        markdown = f"{level} {escape_markdown(title)}\n\n{markdown_table(lines).rstrip()}"
        self.add(markdown if is_file else "", html)
        if is_printed:
            self.printed[title] = lines
        if is_file:
            self.tables[title] = lines

    def add_figure(self, title: str, panels: Mapping[str, DrawFunction], explanation: str = "") -> None:
        """Draw the panels of a figure, write each as SVG and PDF, and add them to the page side by side.

        title: for those who do not see the figure. panels: {name of the files, without ending: function that
        draws}; each panel has its title in itself. What cannot be drawn is left out,
        and the reason is added to skipped_figures.
        """
        shown = []
        for stem, draw in panels.items():
            paths = [self.folder / f"{stem}{ending}" for ending in (".svg", ".pdf")]
            try:
                draw(paths)
            except InputError as error:  # matplotlib is missing, or there is nothing to draw
                needs_matplotlib = str(error) == NEEDS_MATPLOTLIB
                reason = str(error) if needs_matplotlib else sanitize(f"no figure of {title}: {error}")
                self.skipped_figures += [reason] * (reason not in self.skipped_figures)
                continue
            self.files += paths
            shown.append(inline_svg(paths[0].read_text("utf-8"), f"figure-{len(self.files)}"))
            self.markdown.append(f"![{escape_markdown(title)}]({quote(paths[0].name)})\n")
        if shown:
            caption = f"<figcaption>{escape_html_text(explanation, 900)}</figcaption>" if explanation else ""
            self.add("", f'<figure>{caption}<div class="panels">{"".join(shown)}</div></figure>')

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
        """Write the page as one HTML file. footer: HTML."""
        css, script = (
            (Path(__file__).parent / file).read_text(encoding="utf-8").strip()
            for file in ("page.css", "page.js")
        )
        policy = f"default-src 'none'; style-src '{hash_for_csp(css)}'; script-src '{hash_for_csp(script)}'"
        (_, _, top), *sections = [(*about, "\n".join(pieces)) for *about, pieces in self.sections]
        links = "".join(
            f'<li><a href="#{id}">{escape_html_text(heading)}</a></li>' for id, heading, _ in sections
        )
        skipped = "".join(
            f'<p class="warning">{escape_html_text(reason, 900)}</p>' for reason in self.skipped_figures
        )
        body = "\n".join(
            f'<section id="{id}" aria-labelledby="{id}-heading">\n'
            f'<h2 id="{id}-heading">{escape_html_text(heading)}</h2>\n{pieces}\n</section>'
            for id, heading, pieces in sections
        )
        self.add_file(
            file_name,
            f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}; img-src data:; base-uri 'none'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape_html_text(self.title)}</title>
<style>{css}</style>
</head>
<body>
<a class="skip" href="#content">Skip to the results</a>
<header>
<h1>{escape_html_text(self.title)}</h1>
<p class="muted">{escape_html_text(self.subtitle)}</p>
{top}
{skipped}
</header>
<nav aria-label="Contents"><ul>{links}</ul></nav>
<main id="content" tabindex="-1">
{body}
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


def inline_svg(svg: str, prefix: str) -> str:
    """Return a figure of matplotlib as it can stand in an HTML page: smaller, and styled by page.css.

    Styles become attributes, which the security policy of the page permits. prefix: makes the ids in the
    figure those of no other one.
    """
    title, description = (
        found[1] if (found := re.search(rf"<{tag}>(.*?)</{tag}>", svg, re.DOTALL)) else ""
        for tag in ("title", "dc:description")
    )
    box = re.search(r'viewBox="[^"]*"', svg)
    content = svg[svg.index("<defs>") : svg.rindex("</svg>")]
    content = re.sub(r"<style.*?</style>", "", content, flags=re.DOTALL)
    content = re.sub(r' style="([^"]*)"', lambda match: style_to_attributes(match[1]), content)
    content = re.sub(r'<g id="[^"]*"', "<g", content)
    content = re.sub(r'( id="|href="#|url\(#)', rf"\g<1>{prefix}-", content)
    content = re.sub(r"\s*\n\s*", "\n", content)
    return (
        f'<svg class="figure" role="img" aria-labelledby="{prefix}-title {prefix}-words" '
        f'{box[0] if box else ""} stroke-linejoin="round"><title id="{prefix}-title">{title}</title>'
        f'<desc id="{prefix}-words">{description}</desc>{content}</svg>'
    )


def style_to_attributes(style: str) -> str:
    """Return the declarations of a style as SVG attributes, without the font, which is that of the page."""
    pairs = [declaration.split(":", 1) for declaration in style.split(";") if ":" in declaration]
    return "".join(f' {k.strip()}="{v.strip()}"' for k, v in pairs if k.strip() != "font-family")


def hash_for_csp(text: str) -> str:
    """Return the name by which a content security policy allows a style or script with this content."""
    return f"sha256-{base64.b64encode(bytes.fromhex(digest(text))).decode()}"


def escape_html_text(text: object, max_length: int = MAX_NAME_LENGTH) -> str:
    """Return a text as HTML that shows it literally, on one line and cut to max_length characters."""
    return escape(sanitize(str(text), max_length), quote=True)


def class_to_html(class_name: str) -> str:
    """Return ` class="class_name"`, or "" if class_name is empty."""
    return f' class="{class_name}"' if class_name else ""


def table_to_html(
    title: str, lines: Sequence[Sequence[str]], commands: Sequence[str], best: int | None
) -> str:
    """Return a table that page.js makes sortable; columns without numbers are aligned to the left."""
    heading, *body = lines
    is_text = [not any(NUMBER.fullmatch(line[i]) for line in body) for i in range(len(heading))]
    cells = [
        f'<th scope="col"{class_to_html("words" if is_text[i] else "")}>{escape_html_text(cell)}</th>'
        for i, cell in enumerate(heading)
    ]
    cells += ['<th scope="col" class="words command-cell">command</th>'] if commands else []
    rows = []
    for number, line in enumerate(body):
        row = [cell_to_html(cell, i, is_text[i]) for i, cell in enumerate(line)]
        row += [f'<td class="command-cell">{fold_command(commands[number])}</td>'] if commands else []
        rows.append(f"<tr{class_to_html('best' if number == best else '')}>{''.join(row)}</tr>")
    label = escape_html_text(title)
    return (
        f'<p class="caption">{label}</p><div class="scroll" role="region" tabindex="0" '
        f'aria-label="Table: {label}"><table class="sortable" aria-label="{label}">'
        f"<thead><tr>{''.join(cells)}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


def cell_to_html(text: str, column: int, is_text: bool) -> str:
    """Return a cell of a table; page.js sorts it by data-value if it is a number."""
    match = NUMBER.fullmatch(text)
    value = f' data-value="{match[1].replace(",", "")}"' if match else ""
    if column == 0:
        kind = class_to_html("long" if len(text) > 40 else "")
        return f'<th scope="row"{kind}{value}>{escape_html_text(text, MAX_CELL)}</th>'
    kind = "words" if is_text or len(text) > 40 else "number"
    return f'<td class="{kind}"{value}>{escape_html_text(text, MAX_CELL)}</td>'


def fold_command(command: str) -> str:
    """Return a command that can be unfolded, and copied with page.js."""
    code = f'<code class="copyable">{command_to_html(command)}</code>'
    return f'<details class="command"><summary>show</summary>{code}</details>'


def command_to_html(command: str) -> str:
    """Return a command as HTML; no line is broken within the name of an option."""
    lines = "\n".join(escape_html_text(line, 6000) for line in command.split("\n"))
    return re.sub(r"(?<= )--?[a-z][a-z0-9-]*", r"<span>\g<0></span>", lines)
