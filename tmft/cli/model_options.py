"""The options that name a model and say how it embeds sentences; and loading the model that they describe."""

from argparse import Namespace
from pathlib import Path

import torch

from tmft.cli.options import add_device_option, add_init_option, add_max_length_option, add_pooling_option
from tmft.cli.parser import CommandLineParser
from tmft.datasets.task_lookup import read_sentences
from tmft.device import choose_device
from tmft.embedding.prompts import PROMPTS, parse_prompt
from tmft.evaluation.training_free import static_model_from_text
from tmft.sentence_encoder import SentenceEncoder
from tmft.serving.quantization import ENCODE_PRECISIONS, set_encode_precision


# fmt: off
def add_model_options(p: CommandLineParser, layers: str = "") -> None:
    """Add MODEL, and the options that say which part of it is loaded.

    layers: description of further values of --layer, which begins with a semicolon.
    """
    p.add_argument("model", metavar="MODEL", help="hub id[@revision], or a folder that train.py, "
                   "transformers or sentence-transformers has written")
    group = p.add_argument_group("model")
    group.add_argument("--layer", metavar="L", help="number of layers to keep, from the bottom; word: use "
                       "only the word embeddings; 1+12 or word+12: use the mean of these hidden "
                       f"states{layers}; default: all layers")
    add_init_option(group)
    add_max_length_option(group)
    add_device_option(group)


def add_embedding_options(p: CommandLineParser, precision: bool = True) -> None:
    """Add the options that say how sentences are embedded. precision: whether to add --precision."""
    group = p.add_argument_group("embedding")
    add_pooling_option(group)
    group.add_argument("--prompt", metavar="TEXT", help="text around each sentence: "
                       f"{', '.join(PROMPTS)}, or a template with [X] for the sentence and, if need be, [M] "
                       "for the mask token; it replaces the prompt saved with the model")
    group.add_argument("--truncate-dim", type=int, metavar="D", help="keep the first D dimensions of each "
                       "embedding; default: all")
    group.add_argument("--static-from", type=Path, metavar="FILE", help="average the contextual embeddings "
                       "of each token over the sentences of FILE, and use these averages as a static model")
    if precision:
        group.add_argument("--precision", choices=ENCODE_PRECISIONS, default="fp32",
                           help="precision of the layers; int8 needs a CPU with VNNI instructions")
# fmt: on


def load_model(args: Namespace) -> SentenceEncoder:
    """Return the model that the options of add_model_options and add_embedding_options describe.

    It is on the device of --device. With --static-from it is a static model.
    """
    torch.manual_seed(0)  # for --init random
    layer = None if args.layer == "all" else args.layer  # evaluate.py scores all hidden states of all layers
    init = args.init or "pretrained"
    model = SentenceEncoder.from_pretrained(args.model, layer, args.pooling, args.max_length, init)
    model = model.to(choose_device(args.device))
    set_encode_precision(model, getattr(args, "precision", "fp32"))
    if args.prompt:
        model.prompt = parse_prompt(args.prompt)
        weights = model.token_weights
        if weights is not None and (weights.prefix_length or weights.suffix_length):
            model.set_token_weights("no-prompt")  # the saved weights are those of a prompt of another length
    if args.truncate_dim is not None:
        model.truncate_dimensions(args.truncate_dim)
    return static_model_from_text(model, read_sentences(args.static_from)) if args.static_from else model


def load_plain_model(args: Namespace) -> SentenceEncoder:
    """Return the model of add_model_options with mean pooling, without the prompt saved with the model.

    A mean of several hidden states that was saved with the model is ignored, too.
    """
    torch.manual_seed(0)  # for --init random
    init = args.init or "pretrained"
    model = SentenceEncoder.from_pretrained(args.model, args.layer, "mean", args.max_length, init)
    model.prompt, model.layers = "", None
    return model.to(choose_device(args.device))
