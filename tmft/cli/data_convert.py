"""Convert tables of your own (CSV, TSV, JSONL, Parquet) to the TSV files of a task, and check them.

    python -m tmft data convert a.csv --columns sentence1=x,sentence2=y,score=z --split 0.8,0.1,0.1 --out mine
    python -m tmft data convert train.jsonl test.jsonl --columns sentence1,sentence2,label --out mine
    python -m tmft data convert train=a.parquet test=b.parquet --columns text=review,label=stars --out mine

The report says what was found: the number of examples, the range of the scores, the classes, and notes about
empty texts, duplicates, texts of a split that are in another one, and rare classes. Without --out, that is
all. Parquet needs the package pyarrow.
"""

from argparse import Namespace
from pathlib import Path

from tmft.cli.parser import CommandLineParser
from tmft.datasets.own_data import COLUMN_LISTS, convert_tables, parse_columns, parse_fractions
from tmft.errors import check_range, sanitize


def main(argv: list[str] | None = None) -> None:
    args = parse_args(argv)
    check_range("seed", args.seed, 0, 2**63 - 1)
    columns = parse_columns(args.columns)
    fractions = args.split and parse_fractions(args.split)
    for line in convert_tables(args.files, columns, args.out, fractions, args.seed):
        print(sanitize(line))
    if args.out is None:
        print("nothing is written: --out names the folder to write")


# fmt: off
def parse_args(argv: list[str] | None = None) -> Namespace:
    p = CommandLineParser(__doc__, subcommand="convert")
    p.add_argument("files", metavar="FILE", nargs="+", help="table, by its name .csv, .tsv, .jsonl or "
                   ".parquet, also .csv.gz; a name with the word train, dev, validation or test is that "
                   "split, and train=FILE says it of any file")
    forms = "; ".join(",".join(form) for form in COLUMN_LISTS)
    p.add_argument("--columns", metavar="NAME=COLUMN,...", required=True, help="which column of the table "
                   f"becomes which one of the TSV file; a name alone stands for itself. One of: {forms}")
    p.add_argument("--out", type=Path, metavar="FOLDER", help="folder to write train.tsv, dev.tsv and "
                   "test.tsv to, which must not be there; default: only the report")
    p.add_argument("--split", metavar="TRAIN,DEV,TEST", help="divide the examples at random into these "
                   "parts, such as 0.8,0.1,0.1 or 0.9,0.1,0; examples with equal texts stay together; "
                   "default: the names of the files")
    p.add_argument("--seed", type=int, default=0, help="number that determines how --split divides")
    return p.parse_args(argv)
# fmt: on
