"""Options that several commands share, each defined once, and what the commands make of them.

They name a model and say how it embeds sentences, the tasks to score on, and what changes embeddings without
training.

An option that is a field of a dataclass, such as Recipe, is declared there alone. It has the name, the type,
the default and the choices of its field; a bool has --name and --no-name. Its help is the line of the field
in the docstring of the dataclass, `field: text`. There `name` in backticks becomes --name, and a last part
such as "; None: the whole batch" explains the default.
"""

import inspect
import re
from argparse import BooleanOptionalAction, Namespace, _ArgumentGroup
from collections.abc import Iterable, Sequence
from dataclasses import Field, fields, replace
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_origin, get_type_hints

import torch

from tmft.checkpoints.weights import DTYPES
from tmft.cli.parser import CommandLineParser
from tmft.data import SPLITS
from tmft.datasets.task_lookup import expand_groups, get_task
from tmft.device import choose_device
from tmft.embedding.prompts import PROMPTS, parse_prompt
from tmft.embedding.token_weights import TOKEN_WEIGHTS, check_token_weights
from tmft.errors import InputError, check_choice
from tmft.export.quantization import encoder_to_int8, warn_if_slow_in_bfloat16
from tmft.io.text import read_sentences
from tmft.pooling import POOLINGS
from tmft.runs.predictor import FineTunedRun
from tmft.runs.run_config import FineTuningConfig
from tmft.sentence_encoder import SentenceEncoder
from tmft.speed.threads import limit_threads
from tmft.tasks import GROUPS, TASKS, Task
from tmft.training_free.postprocessing import POSTPROCESSING, check_postprocessing, keep_first_dimensions
from tmft.training_free.static_models import read_word_vectors, static_model_from_text
from tmft.training_free.training_free import TrainingFreeConfig, TrainingFreeEncoders

METAVARS = {int: "N", float: "X", str: "NAME", Path: "FILE"}
# "an entry of POOLINGS" in a text becomes the names.
REGISTRIES: dict[str, Iterable[str]] = {"POOLINGS": POOLINGS, "TOKEN_WEIGHTS": TOKEN_WEIGHTS}


def add_field_option(
    group: _ArgumentGroup,
    config_class: type[Any],
    name: str,
    default_text: str = "{}",
    other_flags: Sequence[str] = (),
    **syntax: Any,
) -> None:
    """Add the option of a field. Its default is None, which stands for that of the field.

    default_text: what the help says of the default, in place of {}. other_flags: further names of the option.
    syntax: arguments of add_argument that replace those that follow from the type.
    """
    [field] = [field for field in fields(config_class) if field.name == name]
    annotation, choices = get_type_hints(config_class)[name], field.metadata.get("choices")
    if NoneType in get_args(annotation):
        [annotation] = [one for one in get_args(annotation) if one is not NoneType]
    usual: dict[str, Any] = {"type": annotation, "choices": choices}
    if annotation is bool:
        usual = {"action": BooleanOptionalAction}
    elif get_origin(annotation) is tuple:
        usual = {"type": get_args(annotation)[0], "nargs": "+"}
    if not choices and annotation is not bool:
        usual["metavar"] = METAVARS[usual["type"]]
    text = option_help(field, field_texts(config_class).get(name, ""), default_text)
    group.add_argument(f"--{name.replace('_', '-')}", *other_flags, help=text, **usual | syntax)


def field_texts(config_class: type[Any]) -> dict[str, str]:
    """Return {field: text} from the lines `field: text` in the docstrings of a dataclass and its bases.

    The further lines of a text are indented.
    """
    texts: dict[str, str] = {}
    for one in reversed(config_class.__mro__):
        lines = re.findall(r"^(\w+): (.*(?:\n +.*)*)", inspect.cleandoc(one.__doc__ or ""), re.MULTILINE)
        texts |= {name: " ".join(text.split()) for name, text in lines}
    return texts


def option_help(field: Field[Any], text: str, default_text: str = "{}") -> str:
    """Return the help of an option: the text of its field and, if there is one, the default."""
    for registry, entries in REGISTRIES.items():
        text = text.replace(f"an entry of {registry}", ", ".join(entries))
    text = re.sub(r"`(\w+)`", lambda match: f"--{match[1].replace('_', '-')}", text).replace("%", "%%")
    text, _, explained = text.removesuffix(".").partition("; None: ")
    if isinstance(field.default, bool | int | float | str):  # not None or ()
        explained = f"{field.default:g}" if isinstance(field.default, float) else str(field.default)
    return f"{text}; default: {default_text.format(explained)}" if explained else text


def fields_from_args(args: Namespace, config_class: type[Any]) -> dict[str, Any]:
    """Return {field: value} for the fields of a dataclass whose option was given, or has a default.

    A field without an option, or whose option is None, is left out.
    """
    values = {field.name: getattr(args, field.name, None) for field in fields(config_class)}
    return {name: value for name, value in values.items() if value is not None}


# fmt: off
def add_device_option(group: CommandLineParser | _ArgumentGroup) -> None:
    group.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:1, ...; default: auto, a GPU "
                       "if there is one")


def add_dtype_option(group: _ArgumentGroup, int8: bool = False) -> None:
    """Add --dtype. int8: for commands that only encode, which can also do so in 8 bits."""
    in_8_bits = "; int8: weights in float32, those of the layers rounded to 8 bits, for CPUs with VNNI"
    group.add_argument("--dtype", choices=["auto", *DTYPES, *(["int8"] if int8 else [])],
                       help="type of the weights in memory, in which the layers compute; auto: the type in "
                       f"which they are stored{in_8_bits if int8 else ''}; default: float32")


def add_data_folder_options(
    p: CommandLineParser, group: _ArgumentGroup, files: str = "test.tsv and dev.tsv"
) -> None:
    """Add --data, --data-root and --score-range; `files` names those in the folder of --data."""
    p.exclude("data", "data_root")
    group.add_argument("--data", metavar="FOLDER", help=f"folder with {files}, which replace the files of a "
                       "single task, with TAB between columns and their names in the first line: sentence1, "
                       "sentence2 and score; for classes label in place of score; for single texts text and "
                       "label; for nli anchor, positive and negative; default: the files of the task")
    group.add_argument("--data-root", metavar="FOLDER", help="folder that has a folder for each data set, "
                       "such as stsb; not with --data; default: data/ of the checkout (if tmft is installed: "
                       "of the current folder), where absent data sets are downloaded")
    group.add_argument("--score-range", type=float, nargs=2, metavar=("LOW", "HIGH"), help="lowest and "
                       "highest possible score in the files; default: set by the task, also with --data")
# fmt: on


# -------------------------------------------------------------------------------------------------- the model


# fmt: off
def add_model_options(
    p: CommandLineParser, layers: str = "", dtype: bool = True, int8: bool = False
) -> None:
    """Add MODEL, and the options that choose which part of it is loaded.

    layers: other values of --layer. dtype, int8: whether there is --dtype, and whether it may be int8.
    """
    p.add_argument("model", metavar="MODEL", help="hub id[@revision], or a folder that train.py, "
                   "transformers or sentence-transformers has written; where embeddings are computed, also "
                   "a file of word vectors in the text format of word2vec")
    group = p.add_argument_group("model")
    group.add_argument("--layer", metavar="L", help="number of layers to keep, from the bottom; word: use "
                       "only the word embeddings; 1+12 or word+12: use the mean of these hidden "
                       f"states{layers}; default: all layers")
    add_field_option(group, FineTuningConfig, "init")
    add_field_option(group, FineTuningConfig, "max_length")
    if dtype:
        add_dtype_option(group, int8)
    add_device_option(group)


def add_embedding_options(p: CommandLineParser, reproducible: bool = True) -> None:
    """Add the options that say how sentences are embedded. reproducible: whether --reproducible is one."""
    p.exclude("prompt", "prompt_name")
    group = p.add_argument_group("embedding")
    add_field_option(group, FineTuningConfig, "pooling")
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
    group.add_argument("--drop-frequent", type=int, default=0, metavar="N", help="leave out the first N "
                       "words of MODEL, a file of word vectors in which frequent words come first; "
                       "default: 0")
    if reproducible:
        group.add_argument("--reproducible", action="store_true", help="on one kind of CPU, embed a sentence "
                           "with the same bytes whatever is embedded with it, in any order and with any "
                           "number of threads, which takes longer; default: the last digits may differ")
# fmt: on


def command_device(name: str) -> torch.device:
    """Return the device of a command, which has the process for itself.

    In a container with a CPU quota, torch gets no more threads than the quota allows, see `limit_threads`.
    """
    limit_threads()
    return choose_device(name)


def load_model(
    args: Namespace, device: torch.device, dtype: str | None = None, checkpoint: str | None = None
) -> SentenceEncoder:
    """Return the model that the options of add_model_options and add_embedding_options describe, on a device.

    With --static-from it is a static model. dtype: how the weights are loaded; None: as --dtype says.
    checkpoint: that of another model, with the same options; None: MODEL.
    """
    torch.manual_seed(0)  # for --init random
    layer = None if args.layer == "all" else args.layer  # evaluate.py scores all hidden states of all layers
    init, dtype = args.init or "pretrained", dtype or args.dtype or "float32"
    stored = "float32" if dtype == "int8" else dtype
    name = checkpoint or args.model
    if Path(name).is_file():
        model = load_word_vectors(args, Path(name))
    else:
        if args.drop_frequent:
            problem = f"drop_frequent: {name} is no file of word vectors"
            raise InputError(f"{problem}: remove drop_frequent", "drop_frequent")
        model = SentenceEncoder.from_pretrained(
            name, layer, args.pooling, args.max_length, init, dtype=stored
        )
    model = model.to(device)
    if dtype == "int8":
        encoder_to_int8(model)
    elif model.dtype == torch.bfloat16:
        warn_if_slow_in_bfloat16(model.device)
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
        keep_first_dimensions(model, args.truncate_dim)
    if args.static_from:
        model = static_model_from_text(model, read_sentences(args.static_from))
    model.reproducible = getattr(args, "reproducible", False)
    return model


def load_word_vectors(args: Namespace, path: Path) -> SentenceEncoder:
    """Return the static model of a file of word vectors, which no option about a checkpoint fits."""
    for name in ("pooling", "init") if args.layer in (None, "all") else ("layer",):
        if getattr(args, name) not in (None, "all"):
            problem = f"{name}: {path} is a file of word vectors, whose mean is taken"
            raise InputError(f"{problem}: remove {name}", name)
    model = read_word_vectors(path, args.drop_frequent)
    if args.max_length is not None:
        model.max_length = args.max_length
    return model


# -------------------------------------------------------------------------------------------------- the tasks


def add_task_options(p: CommandLineParser, default: str) -> None:
    """Add the options that name the tasks to score on: --task, --data, --data-root and --score-range.

    default: description of the tasks without --task.
    """
    group = p.add_argument_group("tasks")
    types: dict[str, list[str]] = {task.task_type: [] for task in TASKS.values()}
    for name, task in TASKS.items():
        types[task.task_type].append(name)
    lists = [f"{task_type}: {', '.join(names)}" for task_type, names in types.items()]
    names = "; ".join([*lists, f"groups of these tasks: {', '.join(GROUPS)}"])
    group.add_argument("--task", nargs="+", help=f"{names}; default: {default}")
    group.add_argument("--split", choices=SPLITS, default="test", help="split of the task to score")
    add_data_folder_options(p, group)


def tasks_from_args(
    args: Namespace, default: Sequence[str], run: FineTunedRun | None = None
) -> dict[str, Task]:
    """Return {name: Task} for the tasks chosen by --task and --data.

    If neither is given, they are the tasks that `run` was trained on, or else those named in `default`. With
    --data alone, the files of its folder are scored as the task named in `default`, unless the run was
    trained on classes or on examples given in Python.
    """
    if run and run.task_settings and args.task is None and (args.data is None or run.scores_any_data):
        return run.tasks(args.data, args.data_root, args.score_range)
    names = expand_groups(args.task or default)
    if args.data is not None and len(names) > 1:
        raise InputError("--data has the files of one task: give one --task, or use --data-root instead")
    return {name: get_task(name, args.data, args.data_root, args.score_range) for name in names}


def has_similarity_scores(task: Task) -> bool:
    """Return whether the labels of a task are similarity scores of pairs, not classes or clusters."""
    return task.task_type == "similarity" and not task.classes


# ------------------------------------------------------------------------------------------- without training


# fmt: off
def add_training_free_options(p: CommandLineParser) -> None:
    group = p.add_argument_group("embeddings without training", advanced=True)
    add_field_option(group, FineTuningConfig, "token_weights", metavar="NAME[=FILE]", default_text="{}. With "
                     "FILE, words are counted there; else the frequent ones are those of a list for English")
    group.add_argument("--postprocess", metavar="NAME[=FILE]", help="post-processing of the embeddings: "
                       f"{', '.join(POSTPROCESSING)}, or several as in abtt+normalize; estimated from FILE, "
                       "else from the sentences that are scored")
    group.add_argument("--interpolate", nargs="+", metavar=("MODEL", "W"), help="score (1 - W) u + W v for "
                       "each weight W, where v are the embeddings of another MODEL; default: W is 0.5")
# fmt: on


def training_free_config(args: Namespace) -> TrainingFreeConfig:
    """Return the token weights and post-processing that the options name, with the texts of their FILEs."""
    token_weights, token_weights_file = (args.token_weights or "").partition("=")[::2]
    postprocess, postprocess_file = (args.postprocess or "").partition("=")[::2]
    files = token_weights_file, postprocess_file
    token_texts, postprocess_texts = [read_sentences(Path(file)) if file else None for file in files]
    check_token_weights(token_weights or None)
    check_postprocessing(postprocess)
    return TrainingFreeConfig(token_weights or None, postprocess, token_texts, postprocess_texts)


def make_training_free_encoders(
    args: Namespace, model: SentenceEncoder, config: TrainingFreeConfig
) -> TrainingFreeEncoders:
    """Return what embeds sentences with a model: one function, or one for each layer or weight.

    These are the layers of --layer all, and the weights W of --interpolate MODEL W ...
    """
    last = len(model.encoder.layers)
    if args.layer == "all":
        layers = {layer: replace(config, layers=(layer,)) for layer in range(last + 1)}
        return TrainingFreeEncoders(model, layers)
    if not args.interpolate:
        return TrainingFreeEncoders(model, {last: config})
    other, *words = args.interpolate
    try:
        weights = [float(word) for word in words] or [0.5]
    except ValueError:
        message = f"interpolate {' '.join(args.interpolate)}: give a model, then the weights as numbers"
        raise InputError(message, "interpolate") from None
    static = SentenceEncoder.from_pretrained(other).to(model.device)
    configs = {weight: replace(config, interpolate=weight) for weight in weights}
    return TrainingFreeEncoders(model, configs, {None: static})


def is_training_free(args: Namespace) -> bool:
    """Return whether an option changes the embeddings without training, such as a prompt or token weights.

    If so, random embeddings are scored with the same options, for comparison.
    """
    is_layer_mix = args.layer is not None and ("word" in args.layer or "+" in args.layer)
    options = args.token_weights, args.prompt, args.postprocess, args.static_from, args.interpolate
    return is_layer_mix or any(options)
