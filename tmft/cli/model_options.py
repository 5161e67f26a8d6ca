"""The options that name a model and say how it embeds sentences; and loading the model that they describe."""

from argparse import Namespace
from pathlib import Path

import torch

from tmft.cli.options import (
    add_device_option,
    add_dtype_option,
    add_init_option,
    add_max_length_option,
    add_pooling_option,
)
from tmft.cli.parser import CommandLineParser
from tmft.datasets.task_lookup import read_sentences
from tmft.device import choose_device
from tmft.embedding.prompts import PROMPTS, parse_prompt
from tmft.errors import InputError, check_choice
from tmft.evaluation.training_free import static_model_from_text
from tmft.sentence_encoder import SentenceEncoder
from tmft.serving.quantization import ENCODE_PRECISIONS, set_encode_precision


# fmt: off
def add_model_options(p: CommandLineParser, layers: str = "", dtype: bool = True) -> None:
    """Add the argument MODEL, and the options that choose which part of the model is loaded, and how.

    layers: description of further values of --layer, which begins with a semicolon. dtype: whether to add
    --dtype.
    """
    p.add_argument("model", metavar="MODEL", help="hub id[@revision], or a folder that train.py, "
                   "transformers or sentence-transformers has written")
    group = p.add_argument_group("model")
    group.add_argument("--layer", metavar="L", help="number of layers to keep, from the bottom; word: use "
                       "only the word embeddings; 1+12 or word+12: use the mean of these hidden "
                       f"states{layers}; default: all layers")
    add_init_option(group)
    add_max_length_option(group)
    if dtype:
        add_dtype_option(group)
    add_device_option(group)


def add_embedding_options(p: CommandLineParser, precision: bool = True) -> None:
    """Add the options that say how sentences are embedded. precision: whether to add --precision."""
    group = p.add_argument_group("embedding")
    add_pooling_option(group)
    group.add_argument("--prompt", metavar="TEXT", help="text around each sentence: "
                       f"{', '.join(PROMPTS)}, or a template with [X] for the sentence and, if need be, [M] "
                       "for the mask token; it replaces the default prompt saved with the model")
    group.add_argument("--prompt-name", metavar="NAME", help="use the prompt that is saved with the model "
                       "under this name, such as query; default: the default prompt of the model, if it has "
                       "one")
    group.add_argument("--truncate-dim", type=int, metavar="D", help="keep the first D dimensions of each "
                       "embedding; default: all")
    group.add_argument("--static-from", type=Path, metavar="FILE", help="average the contextual embeddings "
                       "of each token over the sentences of FILE, and use these averages as a static model")
    if precision:
        group.add_argument("--precision", choices=ENCODE_PRECISIONS, help="fp32 and bf16: short for --dtype "
                           "float32 and bfloat16; int8: load the weights in float32, then round those of the "
                           "layers to 8 bits, for CPUs with VNNI instructions; not with --dtype; default: "
                           "as --dtype says")
# fmt: on


def loading_dtype(dtype: str | None, precision: str | None) -> str:
    """Return the dtype in which a model is loaded.

    dtype, precision: the values of the options; None if they are not given. Raises InputError if both are.
    """
    if dtype and precision:
        raise InputError("--dtype and --precision: give only one of the two")
    return dtype or ("bfloat16" if precision == "bf16" else "float32")


def load_model(args: Namespace, dtype: str | None = None) -> SentenceEncoder:
    """Return the model that the options of add_model_options and add_embedding_options describe.

    It is on the device of --device. With --static-from it is a static model. dtype: how the weights are
    loaded; None: as --dtype and --precision say. Raises InputError if the model has no prompt of the name in
    --prompt-name.
    """
    if args.prompt and args.prompt_name:
        raise InputError(f"--prompt and --prompt-name {args.prompt_name}: give one of the two")
    torch.manual_seed(0)  # for --init random
    layer = None if args.layer == "all" else args.layer  # evaluate.py scores all hidden states of all layers
    init, precision = args.init or "pretrained", getattr(args, "precision", None)
    dtype = dtype or loading_dtype(args.dtype, precision)
    model = SentenceEncoder.from_pretrained(
        args.model, layer, args.pooling, args.max_length, init, dtype=dtype
    )
    model = model.to(choose_device(args.device))
    if precision == "int8" or model.dtype == torch.bfloat16:  # bf16 warns if the CPU is slow in it
        set_encode_precision(model, precision or "bf16")
    if args.prompt or args.prompt_name:
        if args.prompt:
            model.prompt = parse_prompt(args.prompt)
        else:
            check_choice("prompt_name", args.prompt_name, model.prompts)
            model.default_prompt_name = args.prompt_name
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
    model = SentenceEncoder.from_pretrained(
        args.model, args.layer, "mean", args.max_length, init, dtype=args.dtype or "float32"
    )
    model.prompt, model.layers = "", None
    return model.to(choose_device(args.device))
