"""Download the official release of a data set and convert it to the TSV files of the other commands.

    python -m tmft data stsb
    python -m tmft data sick --from SICK.zip --to data/
    python -m tmft data sentences books.txt.xz news.txt --out lines.txt
    python -m tmft data convert train.csv dev.csv --columns sentence1=a,sentence2=b,score=c --out mine

The name convert stands for tables of your own, and sentences for splitting texts: see `python -m tmft data
convert --help` and `python -m tmft data sentences --help`.

Data sets that have a known address are also downloaded by the commands that need them.
"""

import sys
from argparse import Namespace
from pathlib import Path

from tmft.cli import data_convert, data_sentences
from tmft.cli.parser import CommandLineParser
from tmft.data import DATA_FOLDER
from tmft.datasets.download import download_dataset
from tmft.datasets.releases import RELEASES

SUBCOMMANDS = {"convert": data_convert, "sentences": data_sentences}


def main(argv: list[str] | None = None) -> None:
    argv = sys.argv[1:] if argv is None else argv
    if argv and argv[0] in SUBCOMMANDS:
        SUBCOMMANDS[argv[0]].main(argv[1:])
        return
    args = parse_args(argv)
    print(download_dataset(args.name, args.source, args.to))


# fmt: off
def parse_args(argv: list[str] | None = None) -> Namespace:
    if argv and argv[0] in SUBCOMMANDS:
        return SUBCOMMANDS[argv[0]].parse_args(argv[1:])
    p = CommandLineParser(__doc__)
    p.add_argument("name", metavar="NAME", choices=RELEASES, help=f"{', '.join(RELEASES)}; see "
                   "data/README.md")
    p.add_argument("--from", dest="source", metavar="PLACE", help="URL, file or folder of a release that "
                   "you have; default: its known address")
    p.add_argument("--to", type=Path, default=DATA_FOLDER, metavar="FOLDER", help="folder of task folders")
    return p.parse_args(argv)
# fmt: on
