"""Download the official release of a data set and convert it to the TSV files of the other commands.

    python -m tmft data stsb
    python -m tmft data sick --from SICK.zip --to data/
    python -m tmft data sentences books.txt.xz news.txt --out lines.txt
    python -m tmft data convert train.csv dev.csv --columns sentence1=a,sentence2=b,score=c --out mine
    python -m tmft data statistics --task clustering sts --tokenizer google-bert/bert-base-uncased

The name convert stands for tables of your own, sentences for splitting texts, and statistics for a table of
data sets: see `python -m tmft data convert --help`, for example.

Data sets that have a known address are also downloaded by the commands that need them.
"""

import sys
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

from tmft.cli.parser import CommandLineParser
from tmft.data import DATA_FOLDER, SPLITS, Examples
from tmft.datasets.download import download_dataset
from tmft.datasets.own_data import COLUMN_LISTS, convert_tables, parse_columns, parse_fractions
from tmft.datasets.releases import RELEASES
from tmft.datasets.task_lookup import expand_groups, get_task, has_data_file, read_split
from tmft.errors import SEED_RANGE, InputError, check_range, sanitize
from tmft.io.atomic import check_writable, write_file
from tmft.io.formatting import text_table
from tmft.io.text import read_lines
from tmft.sentence_encoder import SentenceEncoder
from tmft.students.distillation import extract_sentences
from tmft.tasks import Task

# ------------------------------------------------------------------------------------ tables of your own

CONVERT_DOC = """
Convert tables of your own (CSV, TSV, JSONL, Parquet) to the TSV files of a task.

    python -m tmft data convert a.csv --columns sentence1=x,sentence2=y,score=z --split 0.8,0.1,0.1 --out mine
    python -m tmft data convert train.jsonl test.jsonl --columns sentence1,sentence2,label --out mine
    python -m tmft data convert train=a.parquet test=b.parquet --columns text=review,label=stars --out mine

It prints the number of examples, the range of the scores, and what is worth a second look: empty texts,
duplicates, and texts that are in two splits. If a column of --columns is missing, a message names those of
the table. Text files are in UTF-8; Parquet needs the package pyarrow.
"""


# fmt: off
def parse_convert_args(argv: list[str]) -> Namespace:
    p = CommandLineParser(CONVERT_DOC, subcommand="convert")
    p.add_argument("files", metavar="FILE", nargs="+", help="table, by its name .csv, .tsv, .jsonl or "
                   ".parquet, also .csv.gz; train.csv, dev.csv and test.csv are splits, and train=FILE says "
                   "it of any file")
    forms = "; ".join(",".join(form) for form in COLUMN_LISTS)
    p.add_argument("--columns", metavar="NAME=COLUMN,...", required=True, help="which column of the "
                   "table becomes which one of the TSV file; a name alone stands for itself. One of: "
                   f"{forms}")
    p.add_argument("--out", type=Path, metavar="FOLDER", required=True, help="new folder to write train.tsv, "
                   "dev.tsv and test.tsv to")
    p.add_argument("--split", metavar="TRAIN,DEV,TEST", help="divide the examples at random into these "
                   "parts, such as 0.8,0.1,0.1 or 0.9,0.1,0; examples with equal texts stay together; "
                   "default: the names of the files")
    p.add_argument("--seed", type=int, default=0, help="number that determines how --split divides")
    return p.parse_args(argv)
# fmt: on


def convert(args: Namespace) -> None:
    """Convert the tables of the user, and print the report."""
    check_range("seed", args.seed, *SEED_RANGE)
    fractions = parse_fractions(args.split) if args.split else None
    report = convert_tables(args.files, parse_columns(args.columns), args.out, fractions, args.seed)
    print(*map(sanitize, report), sep="\n")


# ---------------------------------------------------------------------------------------------- sentences

SENTENCES_DOC = """
Split texts into sentences, one per line and without duplicates, as text for train.py --teacher.

    python -m tmft data sentences books.txt.xz news.txt --out lines.txt
    python -m tmft data sentences books.txt.xz --out lines.txt --exclude data/sts*/*.tsv data/sick/*.tsv

A line of a file is a sentence or a paragraph. Sentences that are shorter or longer than the limits are left
out, and so is each sentence that is a cell of a file of --exclude: give it the test sets on which the student
will be scored.
"""


# fmt: off
def parse_sentences_args(argv: list[str]) -> Namespace:
    p = CommandLineParser(SENTENCES_DOC, subcommand="sentences")
    p.add_argument("files", metavar="FILE", nargs="+", type=Path, help="text with a sentence or a paragraph "
                   "per line, also .gz or .xz")
    p.add_argument("--out", metavar="FILE", type=Path, required=True, help="file to write")
    p.add_argument("--exclude", metavar="FILE", nargs="+", type=Path, default=[], help="TSV or text files "
                   "whose cells or lines are left out; default: none")
    p.add_argument("--min-length", metavar="CHARACTERS", type=int, default=20, help="leave out shorter "
                   "sentences")
    p.add_argument("--max-length", metavar="CHARACTERS", type=int, default=250, help="leave out longer "
                   "sentences")
    return p.parse_args(argv)
# fmt: on


def split_into_sentences(args: Namespace) -> None:
    """Write the distinct sentences of texts to a file."""
    check_range("max_length", args.max_length, args.min_length)
    check_writable(args.out, inputs=args.files + args.exclude)
    excluded = {cell for path in args.exclude for line in read_lines(path) for cell in line.split("\t")}
    lines = (line for path in args.files for line in read_lines(path))
    sentences = list(extract_sentences(lines, args.min_length, args.max_length, excluded))
    if not sentences:
        raise InputError(f"{args.files[0]}: no sentence of {args.min_length} to {args.max_length} characters")
    write_file(args.out, "".join(f"{sentence}\n" for sentence in sentences))
    print(f"wrote {args.out}, {len(sentences):,} sentences")


# --------------------------------------------------------------------------------------------- statistics

STATISTICS_DOC = """
Print the size, classes, vocabulary and length of data sets, as tables 2 and 3 of a paper have them.

    python -m tmft data statistics --task clustering --tokenizer google-bert/bert-base-uncased

L/S is the largest class by the smallest, for scores the number of the highest by that of the lowest. Words
are what stands between spaces; the other columns are of the tokens of --tokenizer. (Stankevičius and
Lukoševičius 2024, arXiv:2408.08073; their texts of pairs were tokenized before.)
"""
HEADING = "task,split,N,C,L/S,V words,V,length words,length,alpha % words,alpha %,".split(",")


# fmt: off
def parse_statistics_args(argv: list[str]) -> Namespace:
    p = CommandLineParser(STATISTICS_DOC, subcommand="statistics")
    p.add_argument("--task", nargs="+", default=["clustering"], help="tasks and groups of tasks; default: "
                   "clustering")
    p.add_argument("--tokenizer", metavar="MODEL", required=True, help="model whose tokens are counted")
    p.add_argument("--data-root", metavar="FOLDER", help="folder that has a folder for each data set; "
                   "default: data/ of the checkout")
    return p.parse_args(argv)
# fmt: on


def print_statistics(args: Namespace) -> None:
    """Print a line for each split of each task that is there."""
    backend = SentenceEncoder.from_pretrained(args.tokenizer, layer=0, pooling="mean").tokenizer.backend

    def tokenize(texts: list[str]) -> list[list[str]]:
        return [encoding.tokens for encoding in backend.encode_batch(texts, add_special_tokens=False)]

    lines = [HEADING]
    for name in expand_groups(args.task):
        task = get_task(name, data_root=args.data_root)
        for split in SPLITS if "{split}" in task.files else ["test"]:
            if split == "test" or has_data_file(task.files.format(split=split)):
                statistics = data_statistics(task, read_split(task, split), tokenize)
                lines.append([name, split, *statistics])
    print(text_table(lines))


def data_statistics(
    task: Task, examples: Examples, tokenize: Callable[[list[str]], Iterable[list[str]]]
) -> list[str]:
    """Return the cells of a line from N on: examples, classes, imbalance, and of the tokens, by words and by
    `tokenize`, how many there are in all, their mean number in an example, and the share that is alphabetic.

    The texts of a pair are joined. The imbalance is the size of the largest class divided by that of the
    smallest; for scores, those within 1 of the highest score and of the lowest one stand for the two classes.
    """
    labels = examples.labels
    if task.task_type in ("clustering", "classification") or task.classes:
        counts = Counter(labels).values()
        num_classes, imbalance = str(len(counts)), max(counts) / min(counts)
    else:
        high = sum(score >= task.max_score - 1 for score in labels)
        num_classes, imbalance = "", high / max(1, sum(score <= task.min_score + 1 for score in labels))
    texts = [" ".join(texts) for texts in zip(*examples.texts, strict=True)]
    cells = [str(len(texts)), num_classes, f"{imbalance:.1f}"]
    both = [[text.split() for text in texts], list(tokenize(texts))]
    tokens = [[token for text in tokenized for token in text] for tokenized in both]
    cells += [str(len(set(all_tokens))) for all_tokens in tokens]
    cells += [f"{len(all_tokens) / len(texts):.0f}" for all_tokens in tokens]
    return cells + [f"{100 * sum(map(str.isalpha, one)) / max(1, len(one)):.0f}" for one in tokens] + [""]


# ---------------------------------------------------------------------------------------------- the command

# First word after `tmft data` -> how the others are parsed, and what is done.
SUBCOMMANDS = {
    "convert": (parse_convert_args, convert),
    "sentences": (parse_sentences_args, split_into_sentences),
    "statistics": (parse_statistics_args, print_statistics),
}


def main(argv: list[str] | None = None) -> None:
    argv = sys.argv[1:] if argv is None else argv
    args = parse_args(argv)
    if argv and argv[0] in SUBCOMMANDS:
        _, run = SUBCOMMANDS[argv[0]]
        run(args)
    else:
        print(download_dataset(args.name, args.source, args.to))


# fmt: off
def parse_args(argv: list[str]) -> Namespace:
    if argv and argv[0] in SUBCOMMANDS:
        parse, _ = SUBCOMMANDS[argv[0]]
        return parse(argv[1:])
    p = CommandLineParser(__doc__)
    p.add_argument("name", metavar="NAME", choices=RELEASES, help=f"{', '.join(RELEASES)}; see "
                   "data/README.md")
    p.add_argument("--from", dest="source", metavar="PLACE", help="URL, file or folder of a release that "
                   "you have; default: its known address")
    p.add_argument("--to", type=Path, default=DATA_FOLDER, metavar="FOLDER", help="folder of task folders")
    return p.parse_args(argv)
# fmt: on
