"""Tables as files for papers and programs: LaTeX with booktabs, and CSV.

A table is a list of lines, each a list of cells; the first line is the heading.
"""

import csv
import io
import re
from typing import Any

from tmft.errors import sanitize
from tmft.io.formatting import MAX_NAME_LENGTH

LATEX_CHARACTERS = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "%": r"\%",
    "_": r"\_",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\symbol{34}",
    "±": r"$\pm$",
    "×": r"$\times$",
    "−": r"$-$",
    "★": r"$\star$",
    "–": "--",
    "—": "---",
    "…": r"\ldots{}",
    "’": "'",
}
MAX_LATIN = 0x17F  # pdflatex can print the letters up to this one, the last one of Latin Extended-A


def latex_table(title: str, lines: list[list[str]], label: str) -> str:
    r"""Return a table in LaTeX with booktabs, to be included with \input. label: for \ref.

    If the text has letters that pdflatex cannot print, a comment says so.
    """
    lines = without_empty_column(lines)
    heading, *body = [
        " & ".join(escape_latex(cell, is_first=not i) for i, cell in enumerate(cells)) for cells in lines
    ]
    caption = escape_latex(title)
    text = "\n".join(
        [
            r"% needs \usepackage{booktabs}",
            r"\begin{table}",
            r"  \centering",
            rf"  \caption{{{caption}}}",
            rf"  \label{{tab:{label}}}",
            rf"  \begin{{tabular}}{{l{'r' * (len(lines[0]) - 1)}}}",
            r"    \toprule",
            rf"    {heading} \\",
            r"    \midrule",
            *(rf"    {cells} \\" for cells in body),
            r"    \bottomrule",
            r"  \end{tabular}",
            r"\end{table}",
            "",
        ]
    )
    if any(ord(char) > MAX_LATIN for char in text):
        text = (
            "% has letters that pdflatex does not know: use lualatex or xelatex, with a font that has them\n"
            + text
        )
    return text


def escape_latex(text: str, is_first: bool = False) -> str:
    """Return a text in which characters are escaped, so that LaTeX prints it as it is, on one line.

    A hyphen before a number becomes a minus sign. is_first: whether the text begins a line of a table, where
    LaTeX would take a bracket for an option of the line before.
    """
    text = sanitize(text, MAX_NAME_LENGTH)
    if re.fullmatch(r"[+-]\d+(\.\d+)?", text):
        return f"${text}$"
    escaped = "".join(LATEX_CHARACTERS.get(char, char) for char in text)
    escaped = re.sub(r"([-`'?!])(?=[-`'])", r"\1{}", escaped)  # -- and ?` are ligatures
    return f"{{{escaped}}}" if is_first and escaped.startswith(("[", "*")) else escaped


def csv_table(lines: list[list[Any]]) -> str:
    """Return a table as CSV; a text that a spreadsheet would take for a formula starts with an apostrophe."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerows([csv_cell(cell) for cell in cells] for cells in without_empty_column(lines))
    return file.getvalue()


def csv_cell(cell: object) -> object:
    """Return a cell of a CSV file, with an apostrophe before a text that starts like a formula."""
    if not isinstance(cell, str):
        return cell
    text = sanitize(cell)
    is_number = re.match(r"[+-]\d", text) is not None
    return f"'{text}" if text.startswith(("=", "+", "-", "@")) and not is_number and text != "-" else text


def without_empty_column(lines: list[list[Any]]) -> list[list[Any]]:
    """Return the lines without the last column if it is empty in all of them: it has bars or remarks."""
    return lines if any(cells[-1] != "" for cells in lines) else [cells[:-1] for cells in lines]


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
