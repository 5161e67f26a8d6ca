"""Print the lines of a text file whose embeddings are nearest to that of a query.

    python -m tmft search runs/<name> "music for one guitar" --corpus sentences.txt
    python -m tmft search sentence-transformers/all-MiniLM-L6-v2 "a query" --corpus sentences.txt.gz

Each of the ten lines is printed with its cosine similarity to the query, the highest first.
"""

from argparse import Namespace
from pathlib import Path

from tmft.cli.model_options import add_embedding_options, add_model_options, load_model
from tmft.cli.parser import CommandLine
from tmft.serving.encode_file import nearest_lines


def main(argv: list[str] | None = None) -> None:
    args = parse_args(argv)
    for cosine, line in nearest_lines(load_model(args), args.query, args.corpus):
        print(f"{cosine:.4f}  {line}")


# fmt: off
def parse_args(argv: list[str] | None = None) -> Namespace:
    p = CommandLine(__doc__, command="search")
    add_model_options(p)
    p.add_argument("query", metavar="QUERY", help="text to search for")
    p.add_argument("--corpus", type=Path, metavar="FILE", required=True, help="text with a sentence per "
                   "line, also .gz or .xz")
    add_embedding_options(p)
    return p.parse_args(argv)
# fmt: on
