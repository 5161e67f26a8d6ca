"""Make tables and figures of the finished runs in a folder.

    python -m tmft report runs/
    python -m tmft report runs/ --out report/

The command prints the tables. It writes report.md, each table as LaTeX and CSV, each figure as SVG and PDF,
and all scores of all runs as report.json and runs.csv, with a line per run, split and metric. Figures need
matplotlib (pip install matplotlib); without it, the report has its tables only.
"""

from argparse import Namespace
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
    """Print the tables and notes of a page, and where it was written."""
    for title, lines in page.tables.items():
        print(f"{title}\n{text_table(lines)}\n")
    for note in page.notes:
        print(note)
    [markdown] = [path for path in page.files if path.suffix == ".md"]
    print(f"wrote {markdown} and {len(page.files) - 1} other files beside it")


# fmt: off
def parse_args(argv: list[str] | None = None) -> Namespace:
    p = CommandLineParser(__doc__)
    p.add_argument("runs", metavar="RUNS", type=Path, help="folder that contains the folders of runs")
    p.add_argument("--out", type=Path, metavar="FOLDER", help="folder to write; default: RUNS/report")
    return p.parse_args(argv)
# fmt: on
