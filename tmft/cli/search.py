"""Print the lines of a text file whose embeddings are nearest to that of a query.

    python -m tmft search runs/<name> "music for one guitar" --corpus sentences.txt
    python -m tmft search runs/<name> "music for one guitar" --corpus sentences.txt --vectors vectors.npy
    python -m tmft search sentence-transformers/all-MiniLM-L6-v2 "a query" --corpus sentences.txt.gz

The ten most similar lines are printed with their cosine similarity to the query, the highest first. Without
--vectors all lines are embedded for each query. Control characters of the text are printed as "?".
"""

from argparse import Namespace
from pathlib import Path

from tmft.cli.model_options import add_embedding_options, add_model_options, load_model
from tmft.cli.parser import CommandLineParser
from tmft.formatting import without_control_characters
from tmft.serving.encode_file import nearest_lines


def main(argv: list[str] | None = None) -> None:
    args = parse_args(argv)
    for cosine, line in nearest_lines(load_model(args), args.query, args.corpus, vectors=args.vectors):
        print(f"{cosine:.4f}  {without_control_characters(line)}")


# fmt: off
def parse_args(argv: list[str] | None = None) -> Namespace:
    p = CommandLineParser(__doc__, command="search")
    add_model_options(p)
    p.add_argument("query", metavar="QUERY", help="text to search for")
    p.add_argument("--corpus", type=Path, metavar="FILE", required=True, help="text with a sentence per "
                   "line, also .gz or .xz")
    p.add_argument("--vectors", type=Path, metavar="FILE.npy", help="embeddings of the lines of --corpus, "
                   "written by encode with the same model and options, which is checked; default: every line "
                   "is embedded")
    add_embedding_options(p)
    return p.parse_args(argv)
# fmt: on
