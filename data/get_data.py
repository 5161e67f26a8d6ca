"""Download the official release of a data set and write it as the TSV files that the commands read."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # so that it runs without installing anything

from tmft.cli.parser import CommandLine, run_command  # noqa: E402
from tmft.data import DATA_FOLDER  # noqa: E402
from tmft.datasets.releases import RELEASES, download_dataset  # noqa: E402


def parse_args(argv=None):
    p = CommandLine(__doc__)
    p.add_argument("name", choices=RELEASES, help="a data set of data/README.md; nli: sentences for --task mlm")
    p.add_argument(
        "--from",
        dest="source",
        metavar="PLACE",
        help="URL, file or folder of a release that you have, see data/README.md; default: the official address",
    )
    p.add_argument("--to", type=Path, default=DATA_FOLDER, metavar="FOLDER", help="folder in which the folder of the data set is written")
    return p.parse_args(argv)


def main(argv=None):
    args = parse_args(argv)
    print(download_dataset(args.name, args.source, args.to))


if __name__ == "__main__":
    run_command(main)
