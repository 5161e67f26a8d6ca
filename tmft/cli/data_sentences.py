"""Split texts into sentences, one per line and without duplicates, as text for train.py --teacher.

    python -m tmft data sentences books.txt.xz news.txt --out lines.txt
    python -m tmft data sentences books.txt.xz --out lines.txt --exclude data/sts*/*.tsv data/sick/*.tsv

A line of a file is a sentence or a paragraph. Sentences that are shorter or longer than the limits are left
out, and so is each sentence that is a cell of a file of --exclude: give it the test sets on which the student
will be scored.
"""

from argparse import Namespace
from pathlib import Path

from tmft.cli.parser import CommandLineParser
from tmft.datasets.sentences import sentences_of
from tmft.errors import InputError, check_range
from tmft.io.atomic import write_file
from tmft.io.text import read_lines


def main(argv: list[str] | None = None) -> None:
    args = parse_args(argv)
    check_range("min_length", args.min_length, 1)
    check_range("max_length", args.max_length, args.min_length)
    if args.out.exists():
        raise InputError(f"{args.out} exists already: name a new file")
    excluded = {cell for path in args.exclude for line in read_lines(path) for cell in line.split("\t")}
    lines = (line for path in args.files for line in read_lines(path))
    sentences = list(sentences_of(lines, args.min_length, args.max_length, excluded))
    if not sentences:
        raise InputError(f"{args.files[0]}: no sentence of {args.min_length} to {args.max_length} characters")
    write_file(args.out, "".join(f"{sentence}\n" for sentence in sentences))
    print(f"wrote {args.out}, {len(sentences):,} sentences")


# fmt: off
def parse_args(argv: list[str] | None = None) -> Namespace:
    p = CommandLineParser(__doc__, subcommand="sentences")
    p.add_argument("files", metavar="FILE", nargs="+", type=Path, help="text with a sentence or a paragraph "
                   "per line, also .gz or .xz")
    p.add_argument("--out", metavar="FILE", type=Path, required=True, help="new file to write")
    p.add_argument("--exclude", metavar="FILE", nargs="+", type=Path, default=[], help="TSV or text files "
                   "whose cells or lines are left out; default: none")
    p.add_argument("--min-length", metavar="CHARACTERS", type=int, default=20, help="leave out shorter "
                   "sentences; default: 20")
    p.add_argument("--max-length", metavar="CHARACTERS", type=int, default=250, help="leave out longer "
                   "sentences; default: 250")
    return p.parse_args(argv)
# fmt: on
