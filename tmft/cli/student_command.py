"""Make a narrow student of a sentence encoder: a small untrained model that train.py --teacher then trains.

    python -m tmft student sentence-transformers/all-MiniLM-L6-v2 start --text lines.txt
    python train.py --ckpt start --teacher sentence-transformers/all-MiniLM-L6-v2 --text lines.txt --lr 2e-3

The student has the teacher's tokenizer with the most frequent tokens of the text, layers of its own, and as
word embeddings the principal components of the embeddings that the teacher gives to single tokens. Students
that have layers of the teacher need no such start, see --keep-layers of train.py.
"""

from argparse import Namespace
from pathlib import Path

import torch

from tmft.cli.parser import CommandLineParser
from tmft.io.atomic import check_output_folder, replacing_files
from tmft.pretraining.corpus import read_nonempty_lines
from tmft.sentence_encoder import SentenceEncoder
from tmft.students.narrow_models import HEAD_SIZE, narrow_student


def main(argv: list[str] | None = None) -> None:
    args = parse_args(argv)
    check_output_folder(args.folder, is_new=True)
    teacher, lines = SentenceEncoder.from_pretrained(args.teacher), list(read_nonempty_lines(args.text))
    torch.manual_seed(0)
    student = narrow_student(
        teacher, lines, args.num_layers, args.hidden_size, args.vocab_size, args.max_length
    )
    student.source = args.teacher
    with replacing_files(args.folder) as new:
        student.save_pretrained(new)
    tokens = len(student.tokenizer.vocabulary)
    parameters = sum(parameter.numel() for parameter in student.parameters())
    shape = f"{args.num_layers} layers of {args.hidden_size}"
    print(f"wrote {args.folder}: {shape}, {tokens:,} tokens, {parameters:,} parameters, untrained")


# fmt: off
def parse_args(argv: list[str] | None = None) -> Namespace:
    p = CommandLineParser(__doc__)
    p.add_argument("teacher", metavar="TEACHER", help="hub id[@revision] or folder of the model that teaches")
    p.add_argument("folder", metavar="FOLDER", type=Path, help="new folder to write")
    p.add_argument("--text", type=Path, nargs="+", metavar="FILE", required=True, help="text with one "
                   "sentence per line, also .gz or .xz: that on which the student will be trained")
    p.add_argument("--num-layers", type=int, metavar="L", default=4, help="number of layers; default: 4")
    p.add_argument("--hidden-size", type=int, metavar="H", default=128, help="width of the layers: a "
                   f"multiple of {HEAD_SIZE}, at most the teacher's dimensions; default: 128")
    p.add_argument("--vocab-size", type=int, metavar="V", default=8192, help="number of tokens to keep; "
                   "default: 8192")
    p.add_argument("--max-length", type=int, metavar="TOKENS", default=128, help="truncate sentences to this "
                   "number of tokens; default: 128")
    return p.parse_args(argv)
# fmt: on
