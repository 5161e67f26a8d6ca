"""Predict the class of each line of a file with a classifier that was fine-tuned.

    python -m tmft predict runs/<name> sentences.txt
    python -m tmft predict runs/<name> reviews.csv --columns review > labels.tsv
    python -m tmft predict runs/<name> pairs.csv --columns question1,question2

For each line of a text, or each row of a table, a line is printed: the class, its probability and the text,
with tabs between them. A model that was trained on scores predicts scores. An empty text is read as a full
stop. Control characters of the text are printed as "?".
"""

from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path

from tmft.cli.options import add_device_option, command_device
from tmft.cli.parser import CommandLineParser
from tmft.errors import InputError
from tmft.io.formatting import without_control_characters
from tmft.io.tables import read_columns, read_texts, table_kind
from tmft.runs.predictor import Predictor
from tmft.serving.encode_file import batched


def main(argv: list[str] | None = None) -> None:
    args = parse_args(argv)
    predictor = Predictor.from_pretrained(args.folder, args.task, str(command_device(args.device)))
    names = predictor.task.columns
    if args.columns and len(args.columns) != len(names):
        given = f"columns {','.join(args.columns)}: the model was trained on {' and '.join(names)}"
        raise InputError(f"{given}: name as many columns", "columns")
    _, probabilities = predictor.predict([])  # raises InputError if nothing can be predicted
    print("\t".join(["label", *([] if probabilities is None else ["probability"]), *names]))
    for block in batched(read_unlabeled(args.file, args.columns, names)):
        texts = [[text if text.strip() else "." for text in example] for example in block]
        labels, probabilities = predictor.predict(texts if len(names) > 1 else [text for [text] in texts])
        for i, (label, example) in enumerate(zip(labels, block, strict=True)):
            cells = [label if predictor.classes else f"{label:.4f}"]
            if probabilities is not None:
                cells.append(f"{probabilities[i].max():.4f}")
            print("\t".join(map(without_control_characters, [*cells, *example])))


def read_unlabeled(path: Path, columns: list[str], names: tuple[str, ...]) -> Iterator[list[str]]:
    """Return an iterator over the texts of each line of a text file or row of a table.

    columns: names of the columns of a table; []: those that were trained on, `names`.
    """
    if table_kind(path) or len(names) > 1:
        return (cells for _, cells in read_columns(path, columns or names))
    return ([text] for text in read_texts(path, *columns))


# fmt: off
def parse_args(argv: list[str] | None = None) -> Namespace:
    p = CommandLineParser(__doc__)
    p.add_argument("folder", metavar="FOLDER", help="run folder of train.py, or of fine_tune in Python")
    p.add_argument("file", metavar="FILE", type=Path, help="text with a text per line, also .gz or .xz, or a "
                   "table: .csv, .tsv, .jsonl or .parquet; - is standard input")
    p.add_argument("--columns", metavar="NAME,...", type=lambda names: names.split(","), default=[],
                   help="columns of the texts, if FILE is a table; default: the names of those that were "
                   "trained on, such as text, or sentence1,sentence2")
    p.add_argument("--task", help="task whose head predicts, if the run was trained on several")
    add_device_option(p)
    return p.parse_args(argv)
# fmt: on
