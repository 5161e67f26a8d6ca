"""Write a model for other software, and compare its embeddings with those of the original.

    python -m tmft export runs/<name> served
    python -m tmft export runs/<name> served --format onnx --dtype float16
    python -m tmft export runs/<name> small --prune-vocabulary sentences.txt
    python -m tmft export runs/<name> without-torch --format compact

The exported folder is opened again, and its size, the largest difference of an embedding and the cosines with
the original are printed, on a sample of sentences. Formats: sentence-transformers (which transformers opens,
too); bert, an ELECTRA stored as a BERT for servers that do not support ELECTRA; onnx, for ONNX Runtime;
compact, for numpy and tokenizers without torch (--dtype int4 or int8).
"""

from argparse import Namespace
from pathlib import Path

import torch

from tmft.checkpoints.model_card import ModelCardData
from tmft.checkpoints.save import weight_bytes
from tmft.cli.options import add_embedding_options, add_model_options, command_device, load_model
from tmft.cli.parser import CommandLineParser
from tmft.datasets.task_lookup import get_task, read_split
from tmft.errors import InputError
from tmft.export.export import DTYPES, FORMATS, export
from tmft.io.atomic import check_output_folder
from tmft.io.text import read_lines
from tmft.runs.predictor import FineTunedRun
from tmft.runs.run_result import card_data_from_result
from tmft.students.distill import draw_random_lines
from tmft.students.narrow_models import factorize_embeddings
from tmft.students.vocabulary_pruning import prune_vocabulary


def main(argv: list[str] | None = None) -> None:
    args = parse_args(argv)
    check_output_folder(args.folder, is_new=True)
    result = FineTunedRun(args.model).result
    card_data = card_data_from_result(result) if result else ModelCardData()
    original = exported = load_model(args, command_device(args.device), "float32").to("cpu")
    path = args.prune_vocabulary
    if path:
        exported = prune_vocabulary(original, filter(str.strip, read_lines(path)), args.vocab_size)
        counts = len(original.tokenizer.vocabulary), len(exported.tokenizer.vocabulary)
        print("vocabulary of {} tokens pruned to {}".format(*counts))
    if args.embedding_size is not None:
        text = filter(str.strip, read_lines(path)) if path else draw_random_lines(original, seed=0)
        exported = factorize_embeddings(exported, text, args.embedding_size)
    sentences = read_split(get_task("sample"), "test").sentences
    before = torch.from_numpy(original.encode(sentences))
    after = torch.from_numpy(export(exported, args.folder, args.format, args.dtype, card_data, sentences))
    size = sum(file.stat().st_size for file in args.folder.rglob("*") if file.is_file())
    sizes = f"{size / 1e6:.1f} MB, weights before {weight_bytes(original) / 1e6:.1f} MB"
    print(f"{args.model} as {args.format}, {args.dtype or FORMATS[args.format].dtypes[0]}: {sizes}")
    difference, cosines = (before - after).abs().max(), torch.cosine_similarity(before, after)
    comparison = f"largest difference of {len(sentences)} embeddings: {difference:.1e}"
    print(f"{comparison}, cosine: {cosines.mean():.4f} on average, {cosines.min():.4f} at least")
    print(f"wrote {args.folder}")


# fmt: off
def parse_args(argv: list[str] | None = None) -> Namespace:
    p = CommandLineParser(__doc__)
    add_model_options(p, dtype=False)
    p.add_argument("folder", metavar="FOLDER", type=Path, help="new folder to write")
    group = p.add_argument_group("export")
    group.add_argument("--format", choices=FORMATS, default="sentence-transformers", help="file format")
    group.add_argument("--dtype", choices=[*DTYPES, "int4", "int8"], help="type of the weights in the files; "
                       "default: float32, with --format compact int4")
    group.add_argument("--prune-vocabulary", type=Path, metavar="FILE", help="keep only the tokens that "
                       "occur in FILE, a text with a sentence per line; default: the whole vocabulary")
    group.add_argument("--vocab-size", type=int, metavar="N", help="with --prune-vocabulary: keep only N "
                       "tokens, the most frequent ones; default: all that occur")
    group.add_argument("--embedding-size", type=int, metavar="E", help="store word embeddings of "
                       "E dimensions, and a linear map after them, to be trained further, fitted for "
                       "the tokens that are frequent in the FILE of --prune-vocabulary or, without it, come "
                       "first in the vocabulary; default: those of the model")
    add_embedding_options(p, reproducible=False)
    args = p.parse_args(argv)
    if args.vocab_size is not None and not args.prune_vocabulary:
        raise InputError("--vocab-size needs --prune-vocabulary: name a text, whose frequent tokens are kept")
    return args
# fmt: on
