"""Tables as files for papers and programs: LaTeX with booktabs, and CSV.

A table is a list of lines, each a list of cells; the first line is the heading.
"""

import csv
import io
import re
from typing import Any

from tmft.errors import sanitize
from tmft.io.formatting import MAX_NAME_LENGTH

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
MISSING = "–"  # a cell without a value
NUMBERS = re.compile(r"([+-]?[\d.]+|–)(?: ± ([\d.]+)| \(([+-]?[\d.]+)\))?")


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
    """Return a table for readers as CSV, in which each cell is one number or a text; none is an empty cell.

    Of "78.10 ± 0.20" the deviation has a column of its own, and of "66.10 (65.98)" the published score.
    """
    columns: list[list[str]] = []
    for heading, *cells in zip(*lines, strict=True):
        matches = [NUMBERS.fullmatch(cell) for cell in cells]
        parts = [
            match.groups("") if match else (cell, "", "") for match, cell in zip(matches, cells, strict=True)
        ]
        for i, suffix in enumerate(("", ", std", ", published")):
            column = ["" if part[i] == MISSING else part[i] for part in parts]
            if any(column) or not suffix:
                columns.append([heading + suffix, *column])
    return write_csv([[*row] for row in zip(*columns, strict=True)])


def write_csv(lines: list[list[Any]]) -> str:
    """Return values as CSV; a text that a spreadsheet would take for a formula starts with an apostrophe."""
    file = io.StringIO()
    csv.writer(file, lineterminator="\n").writerows([csv_cell(cell) for cell in cells] for cells in lines)
    return file.getvalue()


def csv_cell(cell: object) -> object:
    """Return a cell of a CSV file, with an apostrophe before a text that starts like a formula."""
    if not isinstance(cell, str):
        return cell
    text = sanitize(cell)
    return f"'{text}" if re.match(r"[=@]|[+-](?!\d|$)", text) else text


def file_stem(title: str, used: set[str]) -> str:
    """Return a name for a file from the title of a table: "stsb: by layer" becomes "stsb-by-layer".

    It has at most 60 characters, before a number that makes it differ from all used names, to which it is
    added.
    """
    stem = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")[:60].strip("-") or "table"
    name, number = stem, 1
    while name in used:
        number += 1
        name = f"{stem}-{number}"
    used.add(name)
    return name
