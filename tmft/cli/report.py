"""Make tables and figures of the finished runs in a folder.

    python -m tmft report runs/
    python -m tmft report runs/ --out report/

The tables are printed. They are also written as report.md, with their values as report.json and, if
matplotlib is installed, figures.
"""

from argparse import Namespace
from pathlib import Path

from tmft.cli.parser import CommandLineParser
from tmft.formatting import text_table
from tmft.reports.report import Page, make_report


def main(argv: list[str] | None = None) -> None:
    args = parse_args(argv)
    print_page(make_report(args.runs, args.out or args.runs / "report"))


def print_page(page: Page) -> None:
    """Print the tables of a page, a message for each figure that was not drawn, and the files written."""
    for title, lines in page.tables.items():
        print(f"{title}\n{text_table(lines)}\n")
    print(*page.notes, *page.skipped_figures, f"wrote {', '.join(map(str, page.files))}", sep="\n")


# fmt: off
def parse_args(argv: list[str] | None = None) -> Namespace:
    p = CommandLineParser(__doc__, command="report")
    p.add_argument("runs", metavar="RUNS", type=Path, help="folder that contains the folders of runs")
    p.add_argument("--out", type=Path, metavar="FOLDER", help="folder to write; default: RUNS/report")
    return p.parse_args(argv)
# fmt: on
