"""Fetch the official release of a data set and write it as the TSV files that the commands read."""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # so that it runs without installing anything

from tmft.data import DATA_FOLDER  # noqa: E402
from tmft.errors import run_command  # noqa: E402
from tmft.releases import RELEASES, STSB_URL  # noqa: E402


def parse_args(argv=None):
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    p.add_argument("name", choices=RELEASES, help="data set")
    p.add_argument(
        "--from",
        dest="source",
        default=STSB_URL,
        metavar="PLACE",
        help="URL, file or folder of a release: sbert.net's stsbenchmark.tsv.gz, a folder with the original "
        "sts-{train,dev,test}.csv, or GLUE's STS-B folder (whose test split has no scores)",
    )
    p.add_argument("--to", type=Path, default=DATA_FOLDER, metavar="FOLDER", help="folder of task folders")
    return p.parse_args(argv)


def main(argv=None):
    args = parse_args(argv)
    print(RELEASES[args.name](args.source, args.to))


if __name__ == "__main__":
    run_command(main)
