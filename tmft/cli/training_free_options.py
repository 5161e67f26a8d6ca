"""The options that change embeddings without training: token weights, post-processing, interpolation."""

import math
from argparse import Namespace
from pathlib import Path

from tmft.cli.options import add_token_weights_option
from tmft.cli.parser import CommandLineParser
from tmft.datasets.task_lookup import read_sentences
from tmft.device import choose_device
from tmft.embedding.postprocessing import POSTPROCESSING, check_postprocessing
from tmft.embedding.token_weights import check_token_weights
from tmft.errors import InputError
from tmft.evaluation.training_free import TrainingFreeConfig
from tmft.sentence_encoder import SentenceEncoder


# fmt: off
def add_training_free_options(p: CommandLineParser) -> None:
    group = p.add_argument_group("embeddings without training", advanced=True)
    add_token_weights_option(group, "NAME[=FILE]", "FILE, else in the sentences that are scored",
                             "the most frequent words of FILE, else of a list for English")
    group.add_argument("--postprocess", metavar="NAME[=FILE]", help="post-processing of the embeddings: "
                       f"{', '.join(POSTPROCESSING)}, or several as in abtt+normalize; estimated from FILE, "
                       "else from the sentences that are scored")
    group.add_argument("--interpolate", nargs="+", metavar=("MODEL", "W"), help="score (1 - W) u + W v for "
                       "each weight W, where v are the embeddings of another MODEL; default: W is 0.5")
# fmt: on


def training_free_config(args: Namespace) -> TrainingFreeConfig:
    """Return the token weights and post-processing that the options name, with the texts of their FILEs.

    Raises InputError for unknown names and for files that cannot be read.
    """
    token_weights, token_weights_file = (args.token_weights or "").partition("=")[::2]
    postprocess, postprocess_file = (args.postprocess or "").partition("=")[::2]
    files = token_weights_file, postprocess_file
    texts = [read_sentences(Path(file)) if file else None for file in files]
    check_token_weights(token_weights or None)
    check_postprocessing(postprocess)
    return TrainingFreeConfig(token_weights or None, postprocess, *texts)


def load_interpolation_model(args: Namespace) -> tuple[SentenceEncoder | None, list[float]]:
    """Return the model and the weights W of --interpolate MODEL W ...; without the option None and []."""
    if not args.interpolate:
        return None, []
    model, *words = args.interpolate
    try:
        weights = [float(word) for word in words]
        if not all(map(math.isfinite, weights)):
            raise ValueError
    except ValueError:
        message = f"interpolate {' '.join(args.interpolate)}: give a model, then the weights as numbers"
        raise InputError(message, "interpolate") from None
    return SentenceEncoder.from_pretrained(model).to(choose_device(args.device)), weights or [0.5]


def is_training_free(args: Namespace) -> bool:
    """Return whether an option changes the embeddings without training, such as a prompt or token weights.

    If so, random embeddings are scored with the same options, for comparison.
    """
    is_layer_mix = args.layer is not None and ("word" in args.layer or "+" in args.layer)
    options = args.token_weights, args.prompt, args.postprocess, args.static_from, args.interpolate
    return is_layer_mix or any(options)
