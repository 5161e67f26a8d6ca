"""Pieces of an HTML page that is one file: it loads nothing, and shows names of strangers as plain text.

The page has its style and its script in it (page.css, page.js), and a content security policy that forbids
everything else: a script that got into the page through a name would not run.
"""

import base64
import hashlib
import re
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

from tmft.errors import sanitize
from tmft.formatting import MAX_NAME_LENGTH

NUMBER = re.compile(r"([+-]?[\d,]*\.?\d+)( ±.*| M| of \d+.*| s|★.*| ★.*)?")


def html_page(title: str, header: str, sections: Sequence[tuple[str, str, str]], footer: str) -> str:
    """Return a whole page.

    title: plain text. header, footer: HTML. sections: (id, heading as plain text, HTML) of each; the page
    begins with links to them.
    """
    css, script = (
        (Path(__file__).parent / name).read_text(encoding="utf-8").strip() for name in ("page.css", "page.js")
    )
    policy = (
        f"default-src 'none'; style-src '{csp_hash(css)}'; script-src '{csp_hash(script)}'; base-uri 'none'"
    )
    links = "".join(f'<li><a href="#{name}">{plain(heading)}</a></li>' for name, heading, _ in sections)
    body = "\n".join(
        f'<section id="{name}" aria-labelledby="{name}-heading">\n'
        f'<h2 id="{name}-heading">{plain(heading)}</h2>\n{content}\n</section>'
        for name, heading, content in sections
    )
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{plain(title)}</title>
<style>{css}</style>
</head>
<body>
<a class="skip" href="#content">Skip to the results</a>
<header>
{header}
</header>
<nav aria-label="Contents"><ul>{links}</ul></nav>
<main id="content" tabindex="-1">
{body}
</main>
<footer>{footer}</footer>
<div id="tip" role="status" aria-live="polite"></div>
<script>{script}</script>
</body>
</html>
"""


def csp_hash(text: str) -> str:
    """Return the name by which a content security policy allows a style or script and no other.

    text: its content.
    """
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def plain(text: object, max_length: int = MAX_NAME_LENGTH) -> str:
    """Return a text as HTML that shows it literally, on one line and cut to max_length characters."""
    return escape(sanitize(str(text), max_length), quote=True)


def table_html(
    caption: str,
    lines: Sequence[Sequence[str]],
    commands: Sequence[str] = (),
    best: Iterable[int] = (),
    words: Iterable[int] = (0,),
    pictures: Sequence[str] = (),
) -> str:
    """Return a table that page.js makes sortable.

    caption: the heading, as plain text. lines: the cells, as plain text; the first line is the heading.
    commands: the command of each line below the heading, for a last column. best: numbers of the lines, from
    0 below the heading, that are marked.
    words: numbers of the columns with text. pictures: HTML for each line below the heading, shown in a column
    without sorting before the commands.
    """
    words, best = set(words), set(best)
    heading, *body = lines
    if not any(cells[-1] for cells in lines):
        heading, *body = [cells[:-1] for cells in lines]
    cells = [
        f'<th scope="col"{class_attribute("words" if i in words else "")}>{plain(cell)}</th>'
        for i, cell in enumerate(heading)
    ]
    cells += ['<th scope="col" class="words command-cell">interval</th>'] if pictures else []
    cells += ['<th scope="col" class="words command-cell">command</th>'] if commands else []
    rows = []
    for number, line in enumerate(body):
        row = [cell_html(cell, i, i in words) for i, cell in enumerate(line)]
        row += [f"<td>{pictures[number]}</td>"] if pictures else []
        row += [f'<td class="command-cell">{command_html(commands[number])}</td>'] if commands else []
        rows.append(f"<tr{class_attribute('best' if number in best else '')}>{''.join(row)}</tr>")
    label = plain(caption)
    return (
        f'<p class="caption">{label}</p><div class="scroll" role="region" tabindex="0" '
        f'aria-label="Table: {label}"><table class="sortable" aria-label="{label}">'
        f"<thead><tr>{''.join(cells)}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


def cell_html(text: str, column: int, is_text: bool) -> str:
    """Return a cell of a table; page.js sorts it by data-value if it is a number.

    text: its content, as plain text. column: its number. is_text: whether the column has text.
    """
    match = NUMBER.fullmatch(text)
    value = f' data-value="{match[1].replace(",", "")}"' if match else ""
    kind = "sentence" if is_text and len(text) > 60 and " " in text else "words" if is_text else "number"
    if len(text) > 40 and kind == "number":
        kind = "words"
    if column == 0:
        kind = class_attribute("sentence" if kind == "sentence" else "long" if len(text) > 40 else "")
        return f'<th scope="row"{kind}{value}>{plain(text, 700)}</th>'
    return f'<td class="{kind}"{value}>{plain(text, 700)}</td>'


def class_attribute(name: str) -> str:
    """Return ` class="name"`, or "" without a name."""
    return f' class="{name}"' if name else ""


def command_words(command: str) -> str:
    """Return a command as HTML; no line is broken within the name of an option."""
    lines = "\n".join(plain(line, 6000) for line in command.split("\n"))
    return re.sub(r"(?<= )--?[a-z][a-z0-9-]*", r"<span>\g<0></span>", lines)


def command_html(command: str) -> str:
    """Return a command that can be unfolded, and copied with page.js."""
    lines = command_words(command)
    return (
        f'<details class="command"><summary>show</summary><code class="copyable">{lines}</code></details>'
        if command
        else ""
    )


def whole_command_html(command: str, name: str) -> str:
    """Return a command that is shown at once, and can be copied with page.js. name: what it repeats."""
    lines = command_words(command)
    return f'<div class="whole-command"><code class="copyable" data-name="{plain(name)}">{lines}</code></div>'


def figure_html(title: str, explanation: str, legend: str, panels: Sequence[str], table: str) -> str:
    """Return a figure with its table folded below it.

    title, explanation: plain text. legend, panels, table: HTML.
    """
    folded = f"<details><summary>The numbers of this figure</summary>{table}</details>" if table else ""
    return (
        f"<figure><figcaption><strong>{plain(title)}</strong> <span>{plain(explanation, 900)}</span>"
        f'</figcaption>{legend}<div class="panels">{"".join(panels)}</div>{folded}</figure>'
    )


def warning_html(sentences: Sequence[str]) -> str:
    """Return a box with warnings, "" if there are none. sentences: the warnings, as plain text."""
    text = "".join(f"<p>{plain(sentence, 1500)}</p>" for sentence in sentences)
    return f'<div class="warning" role="note">{text}</div>' if sentences else ""


def facts_html(facts: dict[str, str]) -> str:
    """Return a list of the names and values in facts, both plain text; empty values are left out."""
    items = "".join(
        f"<dt>{plain(name)}</dt><dd>{plain(value, 1500)}</dd>" for name, value in facts.items() if value
    )
    return f'<dl class="facts">{items}</dl>'
