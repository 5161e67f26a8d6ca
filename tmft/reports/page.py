"""A page of text, tables and figures: written as Markdown, and each table as LaTeX and CSV.

A table is a list of lines, each a list of cells; the first line is the heading. tmft/io/formatting.py writes
it as plain text and as Markdown. Names of strangers are shown as plain text.
"""

import csv
import io
import re
from collections.abc import Callable, Iterable
from itertools import chain, count
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tmft.errors import InputError, sanitize
from tmft.io.atomic import write_file
from tmft.io.formatting import MAX_NAME_LENGTH, escape_markdown, markdown_table, to_json
from tmft.runs.run_folder import make_folder

MAX_PARAGRAPH = 1500  # characters
MISSING = "–"  # a cell without a value
# "78.10 ± 0.20" or "66.10 (65.98)": a score with its deviation, or with a published one in brackets
NUMBERS = re.compile(r"([+-]?[\d.]+|–)(?: ± ([\d.]+)| \(([+-]?[\d.]+)\))?")
LATEX_CHARACTERS: dict[str, str | int | None] = {
    "\\": r"\textbackslash{}",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\symbol{34}",
    "±": r"$\pm$",
    "×": r"$\times$",
    "−": r"$-$",
    "[": "{[}",  # at the start of a line it would be an option of the line before
    "*": "{*}",
    **{char: f"\\{char}" for char in "{}$&#%_"},
}


class Page:
    """A page in a folder, which is created. Raises InputError if nothing can be written there.

    Attributes: tables: {title: lines of the table}. notes: sentences that a command prints, as it does the
    tables. files: paths of all files that were written.
    """

    def __init__(self, folder: Path, title: str):
        make_folder(folder)
        self.folder = folder
        self.markdown: list[str] = []
        self.tables: dict[str, list[list[str]]] = {}
        self.notes: list[str] = []
        self.files: list[Path] = []
        self.stems: set[str] = set()  # of the names of these files
        self.add_heading(title, level=1)

    def add_heading(self, heading: str, level: int = 2) -> None:
        """Begin the page (level 1) or a section of it (level 2)."""
        self.markdown.append(f"{'#' * level} {escape_markdown(heading)}\n")

    def add_text(self, paragraph: str) -> None:
        """Add a paragraph of plain text."""
        self.markdown.append(f"{escape_markdown(paragraph, MAX_PARAGRAPH)}\n")

    def add_warning(self, sentence: str) -> None:
        """Add a warning, which is also printed."""
        self.notes.append(sanitize(sentence))
        self.add_text(sentence)

    def add_table(self, title: str, lines: list[list[str]]) -> None:
        """Add a table below its title. lines: the cells of each line, first those of the heading."""
        title = sanitize(title, MAX_NAME_LENGTH)
        self.add_heading(title, level=3)
        self.markdown.append(markdown_table(lines))
        self.tables[title] = lines

    def add_figure(self, title: str, draw: Callable[[list[Path]], None]) -> None:
        """Draw a figure and write it as SVG and PDF.

        title: for those who do not see the figure. draw: writes it to each of the paths. A figure that cannot
        be drawn is left out, and the reason is a note.
        """
        stem = self.file_stem(title)
        paths = [self.folder / f"{stem}{ending}" for ending in (".svg", ".pdf")]
        try:
            draw(paths)
        except InputError as error:  # matplotlib is missing, or there is nothing to draw
            self.notes += [str(error)] * (str(error) not in self.notes)
            return
        self.files += paths
        self.markdown.append(f"![{escape_markdown(title)}]({quote(paths[0].name)})\n")

    def write(self, page_name: str, data: object) -> None:
        """Write the page to <folder>/page_name.md, and data, the numbers in its tables, to page_name.json.

        The tables go to <folder>/tables, each as .tex and as .csv.
        """
        self.add_file(f"{page_name}.md", "\n".join(self.markdown))
        self.add_file(f"{page_name}.json", to_json(data))
        for title, lines in self.tables.items():
            stem = self.file_stem(title)
            self.add_file(f"tables/{stem}.tex", latex_table(title, lines, label=stem))
            self.add_file(f"tables/{stem}.csv", csv_table(lines))

    def add_file(self, file_name: str, content: str) -> None:
        """Write content, a text, to a file in the folder."""
        write_file(self.folder / file_name, content)
        self.files.append(self.folder / file_name)

    def file_stem(self, title: str) -> str:
        """Return a name for a file from a title: "stsb: by layer" becomes "stsb-by-layer".

        It has at most 60 characters, before a number that makes it differ from all names of this page.
        """
        stem = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")[:60].strip("-") or "table"
        names = chain([stem], (f"{stem}-{number}" for number in count(2)))
        name = next(name for name in names if name not in self.stems)
        self.stems.add(name)
        return name


def latex_table(title: str, lines: list[list[str]], label: str) -> str:
    r"""Return a table in LaTeX with booktabs, to be included with \input. label: for \ref."""
    heading, *body = [" & ".join(map(escape_latex, cells)) for cells in lines]
    rows = "".join(rf"    {cells} \\" + "\n" for cells in body)
    return rf"""% needs \usepackage{{booktabs}}
\begin{{table}}
  \centering
  \caption{{{escape_latex(title)}}}
  \label{{tab:{label}}}
  \begin{{tabular}}{{l{"r" * (len(lines[0]) - 1)}}}
    \toprule
    {heading} \\
    \midrule
{rows}    \bottomrule
  \end{{tabular}}
\end{{table}}
"""


def escape_latex(text: str) -> str:
    """Return a text that LaTeX prints as it is, on one line; a number with a sign is a formula."""
    text = sanitize(text, MAX_NAME_LENGTH)
    if re.fullmatch(r"[+-]\d+(\.\d+)?", text):
        return f"${text}$"
    return text.translate(str.maketrans(LATEX_CHARACTERS))


def csv_table(lines: list[list[str]]) -> str:
    """Return a table as CSV, in which each cell is one number or a text; a missing value is an empty cell.

    Of "78.10 ± 0.20" the deviation has a column of its own, and of "66.10 (65.98)" the published score.
    """
    columns: list[list[str]] = []
    for heading, *cells in zip(*lines, strict=True):
        parts = [match.groups("") if (match := NUMBERS.fullmatch(cell)) else (cell, "", "") for cell in cells]
        for i, suffix in enumerate(("", ", std", ", published")):
            column = ["" if part[i] == MISSING else part[i] for part in parts]
            if any(column) or not suffix:
                columns.append([heading + suffix, *column])
    return write_csv([*zip(*columns, strict=True)])


def write_csv(lines: Iterable[Iterable[Any]]) -> str:
    """Return values as CSV; a text that a spreadsheet would take for a formula starts with an apostrophe."""

    def plain(cell: Any) -> Any:
        text = sanitize(cell) if isinstance(cell, str) else ""
        return f"'{text}" if re.match(r"[=@]|[+-](?!\d|$)", text) else text or cell

    file = io.StringIO()
    csv.writer(file, lineterminator="\n").writerows(map(plain, cells) for cells in lines)
    return file.getvalue()
