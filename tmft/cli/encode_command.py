"""Embed each line of a text file, or each row of a table, and write the embeddings to a .npy file.

    tmft encode "A man plays a guitar."               prints its embedding by data/tiny, without torch
    python -m tmft encode runs/<name> sentences.txt --out vectors.npy
    python -m tmft encode runs/<name> sentences.txt.gz --out vectors.npy --dtype bfloat16
    python -m tmft encode runs/<name> reviews.csv --column text --out vectors.npy
    zcat lines.gz | python -m tmft encode runs/<name> - --out vectors.npy
    torchrun --nproc-per-node 2 -m tmft encode runs/<name> sentences.txt --out vectors.npy

Row i of the result, (N, D) float32, is the embedding of line i; an empty line is read as a full stop. With
--column the file is a table (.csv, .tsv, .jsonl or .parquet), and row i of the result is that of row i.
A run that was interrupted resumes with the same bytes, and several processes share the lines.
"""

import time
from argparse import Namespace
from pathlib import Path

from tmft.cli.options import add_embedding_options, add_model_options, command_device, load_model
from tmft.cli.parser import CommandLineParser
from tmft.io.atomic import check_writable
from tmft.io.distributed import init_distributed
from tmft.io.formatting import format_duration
from tmft.serving.encode_file import encode_file
from tmft.speed.matmul import prepacked_weights


def main(argv: list[str] | None = None) -> None:
    args = parse_args(argv)
    check_writable(args.out, inputs=[args.file, args.model, args.static_from])
    processes = init_distributed(command_device(args.device))
    model = load_model(args, processes.device)
    start = time.perf_counter()
    with prepacked_weights(model.encoder):
        count, num_resumed = encode_file(model, args.file, args.out, processes, args.column)
    if processes.rank == 0:
        seconds = time.perf_counter() - start
        resumed = f", {num_resumed} of them before" if num_resumed else ""
        rate = f"{(count - num_resumed) / seconds:,.0f} a second"
        shape = f"{count} x {model.dimensions} float32{resumed}"
        print(f"wrote {args.out}: {shape}, {format_duration(seconds)}, {rate}")


# fmt: off
def parse_args(argv: list[str] | None = None) -> Namespace:
    p = CommandLineParser(__doc__)
    add_model_options(p, int8=True)
    p.add_argument("file", metavar="FILE", type=Path, help="text with a sentence per line, also .gz or .xz; "
                   "- is standard input")
    p.add_argument("--out", type=Path, metavar="FILE.npy", required=True, help="file to write; not FILE, a "
                   "symbolic link or a device")
    p.add_argument("--column", metavar="NAME", help="column of the texts, if FILE is a table: .csv, .tsv, "
                   ".jsonl or .parquet")
    add_embedding_options(p)
    return p.parse_args(argv)
# fmt: on
