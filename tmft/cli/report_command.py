"""Make tables and figures of the finished runs in a folder.

    python -m tmft report runs/
    python -m tmft report runs/ --out report/

The tables are printed. The folder gets a page for browsers, index.html, which is one file and loads nothing;
the same as report.md, with its values as report.json; each table as LaTeX and CSV; all scores of all runs as
runs.csv, with a line per run, split and metric; and each figure of the page as SVG and PDF. Figures need
matplotlib (pip install matplotlib); without it, the report has its tables only.
"""

from argparse import Namespace
from collections import Counter
from pathlib import Path

from tmft import __version__
from tmft.cli.parser import CommandLineParser
from tmft.io.atomic import check_output_folder
from tmft.io.formatting import text_table
from tmft.reports.page import Page
from tmft.reports.report import make_report


def main(argv: list[str] | None = None) -> None:
    args = parse_args(argv)
    out = args.out or args.runs / "report"
    check_output_folder(out, [args.runs])
    print_page(make_report(args.runs, out, f"tmft {__version__}"))


def print_page(page: Page) -> None:
    """Print the tables of a page, a message for each figure that was not drawn, and the files written."""
    for title, lines in page.tables.items():
        print(f"{title}\n{text_table(lines)}\n")
    print(*page.notes, *page.skipped_figures, files_line(page), sep="\n")


def files_line(page: Page) -> str:
    """Return a line that names all files that were written; figures and files in a folder are counted."""
    paths = [path.relative_to(page.folder) for path in page.files]
    names = [path.name for path in paths if len(path.parts) == 1 and path.suffix not in (".svg", ".pdf")]
    folders = Counter(path.parts[0] for path in paths if len(path.parts) > 1)
    counts = [f"{name}/ ({count} files)" for name, count in folders.items()]
    if number := sum(path.suffix == ".svg" for path in paths):
        names = [f"{number} figures (.svg and .pdf)", *names]
    return f"wrote {page.folder}: " + ", ".join([*sorted(names, key="index.html".__ne__), *counts])


# fmt: off
def parse_args(argv: list[str] | None = None) -> Namespace:
    p = CommandLineParser(__doc__)
    p.add_argument("runs", metavar="RUNS", type=Path, help="folder that contains the folders of runs")
    p.add_argument("--out", type=Path, metavar="FOLDER", help="folder to write; default: RUNS/report")
    return p.parse_args(argv)
# fmt: on
