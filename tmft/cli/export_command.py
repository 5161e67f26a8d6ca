"""Write a model for other software, and compare it with the original.

    python -m tmft export runs/<name> served
    python -m tmft export runs/<name> served --format onnx --dtype float16
    python -m tmft export runs/<name> small --prune-vocabulary sentences.txt
    python -m tmft export runs/<name> without-torch --format compact

The exported folder is opened again, and its size, the largest difference of an embedding, the lowest cosine
and the score before and after are printed, on a sample or on --task. Formats: sentence-transformers (which
transformers opens, too); bert, an ELECTRA stored as a BERT for servers that do not support ELECTRA; onnx, for
ONNX Runtime, also with 8 bits; compact, for numpy and tokenizers without torch (--dtype int4 or int8).
"""

import math
from argparse import Namespace
from functools import cache, partial
from pathlib import Path

import torch

from tmft.checkpoints.model_card import ModelCardData
from tmft.checkpoints.save import weight_bytes
from tmft.cli.options import (
    add_embedding_options,
    add_model_options,
    add_task_options,
    command_device,
    load_model,
    only_similarity_task,
    tasks_from_args,
)
from tmft.cli.parser import CommandLineParser
from tmft.datasets.task_lookup import read_split
from tmft.errors import InputError
from tmft.evaluation.evaluators import Evaluation
from tmft.export.export import DTYPES, FORMATS, QUANTIZED_DTYPES, export, folder_size
from tmft.io.atomic import check_output_folder
from tmft.io.formatting import percent
from tmft.io.text import read_lines
from tmft.runs.predictor import FineTunedRun
from tmft.runs.run_result import card_data_from_result
from tmft.runs.sweeps import layer_curve
from tmft.students.distill import draw_random_lines
from tmft.students.narrow_models import factorize_embeddings
from tmft.students.vocabulary_pruning import prune_vocabulary


def main(argv: list[str] | None = None) -> None:
    args = parse_args(argv)
    check_output_folder(args.folder, is_new=True)
    result = FineTunedRun(args.model).result
    name, task = only_similarity_task(tasks_from_args(args, ["sample"]))
    evaluation = Evaluation(task, cache(partial(read_split, task)), args.split)
    sentences = evaluation.examples.sentences
    dtype = "auto" if args.dtype == "auto" else "float32"
    original = exported = load_model(args, command_device(args.device), dtype).to("cpu")
    if args.dtype == "auto":
        args.dtype = str(original.dtype).removeprefix("torch.")
    if args.prune_vocabulary:
        lines = filter(str.strip, read_lines(args.prune_vocabulary))
        exported = prune_vocabulary(original, lines, args.vocab_size)
        counts = len(original.tokenizer.vocabulary), len(exported.tokenizer.vocabulary)
        print("vocabulary of {} tokens pruned to {}".format(*counts))
    if args.embedding_size is not None:
        path = args.prune_vocabulary
        text = filter(str.strip, read_lines(path)) if path else draw_random_lines(original, seed=0)
        exported = factorize_embeddings(exported, text, args.embedding_size)
    card_data = card_data_from_result(result, layer_curve(Path(args.model))) if result else ModelCardData()
    before = torch.from_numpy(original.encode(sentences))
    score_of = lambda x: evaluation.score(lambda texts: x)[task.metric]  # noqa: E731
    if args.prune_vocabulary and math.isnan(score_of(torch.from_numpy(exported.encode(sentences)))):
        problem = f"prune_vocabulary {args.prune_vocabulary}: the text is too short, all embeddings become"
        remedy = "name a longer one, or choose a larger `embedding_size`"
        problem += f" equal and {task.metric} is undefined"
        raise InputError(f"{problem}: {remedy}", "prune_vocabulary", "embedding_size")
    embeddings = export(exported, args.folder, args.format, args.dtype, card_data, sentences)
    after = torch.from_numpy(embeddings)
    scores = score_of(after), score_of(before)
    megabytes = folder_size(args.folder) / 1e6, weight_bytes(original) / 1e6
    sizes = "{:.1f} MB, weights before {:.1f} MB".format(*megabytes)
    print(f"{args.model} as {args.format}, {args.dtype}: {sizes}")
    difference, cosines = (before - after).abs().max(), torch.cosine_similarity(before, after)
    comparison = f"largest difference of {len(sentences)} embeddings: {difference:.1e}"
    print(f"{comparison}, cosine: {cosines.mean():.4f} on average, {cosines.min():.4f} at least")
    print(f"{name} {args.split} {task.metric}: {percent(scores[0])}, before {percent(scores[1])}")
    print(f"wrote {args.folder}")


# fmt: off
def parse_args(argv: list[str] | None = None) -> Namespace:
    p = CommandLineParser(__doc__)
    add_model_options(p, dtype=False)
    p.add_argument("folder", metavar="FOLDER", type=Path, help="new folder to write")
    group = p.add_argument_group("export")
    group.add_argument("--format", choices=FORMATS, default="sentence-transformers", help="file format")
    dtypes = ["auto", *DTYPES, *QUANTIZED_DTYPES]
    group.add_argument("--dtype", choices=dtypes, help="type of the weights in the files; auto: the type in "
                       "which they are stored in MODEL, then also in memory; int8 (format onnx): "
                       "weights and inputs of linear maps in 8 bits, for CPUs with VNNI "
                       "instructions and for ARM; uint8 (format onnx): the same for other CPUs; int4, int8 "
                       "(format compact): the weights alone; default: float32, with --format compact int4")
    group.add_argument("--prune-vocabulary", type=Path, metavar="FILE", help="keep only the tokens that "
                       "occur in FILE, a text with a sentence per line; default: the whole vocabulary")
    group.add_argument("--vocab-size", type=int, metavar="N", help="with --prune-vocabulary: keep only N "
                       "tokens, the most frequent ones; default: all that occur")
    group.add_argument("--embedding-size", type=int, metavar="E", help="store word embeddings of "
                       "E dimensions, and a linear map after them, to be trained further, fitted for "
                       "the tokens that are frequent in the FILE of --prune-vocabulary or, without it, come "
                       "first in the vocabulary; default: those of the model")
    add_embedding_options(p, reproducible=False)
    add_task_options(p, "a sample that comes with tmft", several=False)
    args = p.parse_args(argv)
    args.dtype = args.dtype or FORMATS[args.format].dtypes[0]
    if args.vocab_size is not None and not args.prune_vocabulary:
        raise InputError("--vocab-size needs --prune-vocabulary: name a text, whose frequent tokens are kept")
    return args
# fmt: on
