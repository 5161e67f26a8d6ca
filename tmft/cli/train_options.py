"""The options of train.py, in groups named after features.

The attribute of an option has the name of the field that it sets, of FineTuningConfig, FineTuningRecipe,
PretrainingConfig, PretrainingRecipe or the config of an objective; see fields_from_args.
"""

from argparse import SUPPRESS, Namespace, _ArgumentGroup
from pathlib import Path
from typing import Any

from tmft.checkpoints.compact import NUMBER_RANGES
from tmft.cli.options import (
    add_data_folder_options,
    add_device_option,
    add_init_option,
    add_max_length_option,
    add_pooling_option,
    add_token_weights_option,
)
from tmft.cli.parser import CommandLineParser
from tmft.datasets.task_lookup import find_objective
from tmft.device import PRECISIONS
from tmft.errors import check_range
from tmft.losses.nested import ALL_LAYERS
from tmft.losses.objectives import OBJECTIVES
from tmft.metrics import METRICS
from tmft.optimizers import OPTIMIZERS
from tmft.runs.pretrain import PRETRAINING_TASKS
from tmft.runs.run_config import FROM_SCRATCH_DEFAULTS, FineTuningRecipe, parse_keep_layers
from tmft.tasks import TASKS
from tmft.training.gradient_surgery import GRADIENT_SURGERY
from tmft.training.multitask import STOPPING_STRATEGIES, TASK_SAMPLING
from tmft.training.trackers import TRACKERS

Groups = list[_ArgumentGroup]
# The dataclasses whose fields are hyperparameters of an objective, each once.
OBJECTIVE_CONFIGS: tuple[Any, ...] = tuple(
    dict.fromkeys(filter(None, (entry.config_class for entry in OBJECTIVES.values())))
)
# The tasks whose objective learns from a teacher; the first one is the default if there is a --teacher.
TEACHER_TASKS = [name for name, task in TASKS.items() if find_objective(task).needs_teacher]
# Name of a task -> what --help adds in brackets, where the name alone does not say what is trained.
TASK_NOTES = {
    "sample": "comes with tmft",
    "nli": "triplets with a contradiction",
    "mlm": "masked language modeling",
    "rtd": "replaced token detection",
    "clm": "causal language modeling",
}


def add_train_options(p: CommandLineParser) -> tuple[Groups, Groups]:
    """Add all options; return the groups that are for fine-tuning only, and for pre-training only."""
    add_main_options(p)
    fine_tuning_groups = [
        add_layer_options(p),
        add_data_options(p),
        add_loss_options(p),
        add_model_change_options(p),
        add_memory_options(p),
        add_several_tasks_options(p),
        add_contrastive_options(p),
        add_head_options(p),
        add_distillation_options(p),
        add_all_layers_options(p),
    ]
    add_optimization_options(p)
    pretraining_groups = [add_pretraining_options(p)]
    add_output_options(p)
    fine_tuning_groups.append(add_tracker_options(p))
    p.exclude("seed", "num_seeds")
    p.exclude("epochs", "steps")
    return fine_tuning_groups, pretraining_groups


def check_train_options(
    p: CommandLineParser, args: Namespace, fine_tuning_groups: Groups, pretraining_groups: Groups
) -> None:
    """Set args.task to one string, by default "stsb", or one that learns from the teacher if there is one.

    Raises InputError for options that exclude each other, or that have no effect with the task.
    """
    args.task = " ".join(args.task or [TEACHER_TASKS[0] if args.teacher else "stsb"])
    unused = fine_tuning_groups if args.task in PRETRAINING_TASKS else pretraining_groups
    p.reject_unused(args, unused, f"--task {args.task}")
    check_range("num_seeds", 1 if args.num_seeds is None else args.num_seeds, 1)


def describe_trainable_tasks() -> str:
    """Return the names of the tasks that have training data, with notes, by the kind of their labels."""
    trainable = {name: task for name, task in TASKS.items() if task.objective and "{split}" in task.files}
    scores = [name for name, task in trainable.items() if task.label and not task.classes]
    classes = [name for name, task in trainable.items() if task.classes]
    unlabeled = [name for name, task in trainable.items() if not task.label]
    text_tasks = [*TEACHER_TASKS, *PRETRAINING_TASKS]

    def join(names: list[str]) -> str:
        return ", ".join(f"{name} ({TASK_NOTES[name]})" if name in TASK_NOTES else name for name in names)

    return (
        f"Pairs with similarity scores: {join(scores)}; classes: {join(classes)}; pairs without labels: "
        f"{join(unlabeled)}; the lines of --text: {join(text_tasks)}"
    )


def describe_objectives() -> str:
    """Return the names of the objectives: those without a trained head, then those with one."""
    names: dict[str, list[str]] = {"cosine": [], "class": [], "score": [], "embedding": []}
    for name, objective in OBJECTIVES.items():
        names[objective.prediction_type].append(name)
    return (
        f"{', '.join(names['cosine'] + names['embedding'])}; with a trained head that predicts a class: "
        f"{', '.join(names['class'])}; or a score: {', '.join(names['score'])}"
    )


# fmt: off
def add_main_options(p: CommandLineParser) -> None:
    group = p.add_argument_group("main options")
    group.add_argument("--ckpt", "--model", nargs="+", metavar="MODEL", help="checkpoint, as a folder or "
                       "hub id[@revision]; each of several is trained in runs of its own; default: a small "
                       "ELECTRA that comes with tmft, and with it --layer all --task sample --lr 3e-4, "
                       "whose own defaults apply only with --ckpt")
    group.add_argument("--task", nargs="+", metavar="TASK[:OBJECTIVE]", help="data set to train and score "
                       f"on; it sets loss, metric and recipe. {describe_trainable_tasks()}. "
                       "Tasks without labels and "
                       "distillation are scored on stsb. Several tasks, separated by spaces, train one model "
                       "together. OBJECTIVE: another loss, see --objective; default: stsb, or distillation "
                       "with --teacher")
    group.add_argument("--text", type=Path, nargs="+", metavar="FILE", help="text with one sentence per "
                       "line, also .gz or .xz; needed for pre-training and distillation")
    group.add_argument("--num-seeds", type=int, metavar="N", help="do a run with each of the seeds 0 to "
                       "N-1; default: 1")
    group.add_argument("--seed", type=int, metavar="N", help="use only this seed; not with --num-seeds; "
                       "default: 0")
    add_max_length_option(group, "the limit of the model; 128 for pre-training")
    add_device_option(group)


def add_layer_options(p: CommandLineParser) -> _ArgumentGroup:
    group = p.add_argument_group("model")
    group.add_argument("--layer", metavar="L", help="keep the first L layers, such as 9; 0 keeps only the "
                       "embeddings. 0-12, 3,6,9 or all (0 to the last) are sweeps: each number is a separate "
                       "run (one model for all layers: --all-layers; other than the first layers: "
                       "--keep-layers). auto: short runs with the first seed find the number that is best on "
                       "dev, of those within 0.5 points of it the smallest; they train a quarter of what a "
                       "sweep trains and take about a third of its time; then a full run with each seed; "
                       "default: the whole model, in one run")
    add_pooling_option(group)
    return group


def add_data_options(p: CommandLineParser) -> _ArgumentGroup:
    group = p.add_argument_group("data")
    add_data_folder_options(p, group, "train.tsv, dev.tsv and test.tsv")
    group.add_argument("--train-fraction", type=float, metavar="F", help="train on this fraction of the "
                       "examples, drawn with the seed; default: 1")
    group.add_argument("--dev-fraction", type=float, metavar="F", help="for data without dev.tsv: keep this "
                       "fraction of the training examples for dev, such as 0.1; they are the same with "
                       "every seed; default: dev.tsv is read")
    return group


def add_loss_options(p: CommandLineParser) -> _ArgumentGroup:
    group = p.add_argument_group("loss and selection of the epoch", advanced=True)
    group.add_argument("--objective", metavar="NAME", help=f"loss. {describe_objectives()}. For several "
                       "tasks, write TASK:OBJECTIVE instead; default: set by the task")
    group.add_argument("--selection-metric", metavar="NAME", help="keep the epoch in which this metric is "
                       f"highest on dev: {', '.join(METRICS)}. For several tasks it is the mean of their "
                       "scores; default: set by the task")
    return group


def add_model_change_options(p: CommandLineParser) -> _ArgumentGroup:
    group = p.add_argument_group("changes of the model", advanced=True)
    add_init_option(group)
    group.add_argument("--keep-layers", type=parse_keep_layers, metavar="I,J,...", help="keep the layers "
                       "with these indices, counted from 0, such as 0,2,5; not with --layer or --init-from; "
                       "default: the first layers, see --layer")
    group.add_argument("--init-from", metavar="RUN", help="start from the weights of an earlier run, given "
                       "as its folder; it must have the same --ckpt and --layer. {layer} and {seed} in the "
                       "name are replaced by those of each run: "
                       "runs/electra-wordsim-layer{layer}-seed0. Not with --init random")
    add_token_weights_option(group, "NAME", "the training sentences", "words that are frequent there")
    group.add_argument("--projection", type=int, metavar="D", help="add a linear map to D dimensions after "
                       "the pooling, then scale to length 1; default: none")
    group.add_argument("--quantization", choices=NUMBER_RANGES, help="train with weights that are rounded "
                       "to 4 or 8 bits, as `tmft export --format compact` with this --dtype will store "
                       "them; default: no rounding")
    return group


def add_memory_options(p: CommandLineParser) -> _ArgumentGroup:
    group = p.add_argument_group("memory and speed", advanced=True)
    group.add_argument("--mini-batch-size", type=int, metavar="N", help="embed N examples of a batch at a "
                       "time (gradient caching): the gradient is the same and needs less memory; default: "
                       "set by the task, else the whole batch")
    group.add_argument("--freeze-layers", type=int, nargs="?", const=-1, metavar="L", help="do not train "
                       "the embeddings and the first L layers or, without L, the whole encoder; not with "
                       "--all-layers; default: nothing is frozen")
    return group


def add_several_tasks_options(p: CommandLineParser) -> _ArgumentGroup:
    group = p.add_argument_group("several tasks", advanced=True)
    group.add_argument("--task-sampling", choices=TASK_SAMPLING, help="joint: every step has a batch of "
                       "each task; round-robin: the tasks take turns, with a batch each; sequential: in "
                       "every epoch all batches of the first task, then of the next one; proportional: all "
                       "batches of all tasks in random order; default: joint")
    group.add_argument("--stopping-strategy", choices=STOPPING_STRATEGIES, help="end of an epoch with joint "
                       "or round-robin. first_exhausted: when the smallest data set has been used; "
                       "all_exhausted: when all have been, the smaller ones repeatedly; default: "
                       "first_exhausted")
    group.add_argument("--loss-weights", type=float, nargs="+", metavar="W", help="weight of the loss of "
                       "each task, in the order of --task; default: 1 for each")
    group.add_argument("--gradient-surgery", choices=GRADIENT_SURGERY, help="log: log the cosine similarity "
                       "of the gradients of each two tasks; pcgrad: also project each gradient onto the "
                       "normal plane of those that it conflicts with (Yu et al. 2020); default: none")
    return group


def add_contrastive_options(p: CommandLineParser) -> _ArgumentGroup:
    title = "contrastive learning (multiple_negatives_ranking; the temperature also of cosent and angle)"
    group = p.add_argument_group(title, advanced=True)
    group.add_argument("--temperature", type=float, metavar="T", help="divide the cosines by T before the "
                       "softmax or, in cosent and angle, their differences; default: set by the task, else "
                       "0.05")
    group.add_argument("--no-symmetric", dest="symmetric", action="store_const", const=False,
                       help="use only the loss of finding the positive of each anchor; default: add the "
                       "loss of finding the anchor of each positive")
    group.add_argument("--mask-duplicate-anchors", action="store_const", const=True, help="if two examples "
                       "of a batch have the same anchor, do not use the positive of one as a negative of "
                       "the other; default: it is used")
    return group


def add_head_options(p: CommandLineParser) -> _ArgumentGroup:
    group = p.add_argument_group("trained heads (losses with a name in _head)", advanced=True)
    group.add_argument("--dropout", type=float, metavar="P", help="dropout probability in the head; "
                       "default: set by the task, else 0")
    group.add_argument("--dropout-after-features", action="store_const", const=True, help="apply the "
                       "dropout before the last operation of the head (dot product, cosine or linear "
                       "layer), to what it computes from the embeddings; default: to the embeddings")
    group.add_argument("--rescale-scores", dest="rescale_to_labels", action="store_const", const=True,
                       help="map the output of the head (by a sigmoid, or linearly if it is a cosine) into "
                       "the range of the scores, in training and evaluation; default: no")
    return group


def add_distillation_options(p: CommandLineParser) -> _ArgumentGroup:
    group = p.add_argument_group("distillation", advanced=True)
    group.add_argument("--teacher", metavar="MODEL", help="hub id or folder of a sentence encoder. The "
                       "model learns its embeddings of the lines of --text. If they have D dimensions and "
                       "those of the model have not, add --projection D. Dev and test are STS benchmark or, "
                       "with --selection-metric teacher_cosine, lines of --text that are not trained on; "
                       "default: none")
    group.add_argument("--max-lines", type=int, metavar="N", help="use N lines of --text, drawn at random; "
                       "default: all")
    group.add_argument("--similarity-weight", type=float, metavar="W", help="weight of a second loss: the "
                       "mean squared error of the cosine similarities between the texts of a batch; "
                       "default: 0")
    return group


def add_all_layers_options(p: CommandLineParser) -> _ArgumentGroup:
    group = p.add_argument_group("one model for several layers and dimensions", advanced=True)
    group.add_argument("--all-layers", choices=ALL_LAYERS, help="train the output of every kept layer in one "
                       "run, so that the model can be truncated later. mean: the mean of the losses of all "
                       "layers; sample: in each step the mean of the losses of the last layer and of a "
                       "random one; widening: the mean of the losses of all layers, of which each has as "
                       "many dimensions as its depth allows: layer 2 of 6 a third of them, the last one all; "
                       "default: only the output of the last kept layer is trained")
    group.add_argument("--matryoshka-dims", type=int, nargs="+", metavar="D", help="also train the first D "
                       "dimensions of the embedding, for each D, such as 64 128, so that they can be used "
                       "alone; not with a trained head; default: none")
    return group


def add_optimization_options(p: CommandLineParser) -> None:
    recipe, scratch = FineTuningRecipe(), FROM_SCRATCH_DEFAULTS
    group = p.add_argument_group("optimization")
    group.add_argument("--epochs", type=int, metavar="N", help="number of epochs, of pre-training too, but "
                       f"not with --steps; default: set by the task, else {recipe.epochs}")
    group.add_argument("--batch-size", type=int, metavar="N", help="examples per batch; default: set by the "
                       f"task, else {recipe.batch_size}; with --from-scratch {scratch['batch_size']}")
    group.add_argument("--lr", type=float, help="highest learning rate; it rises linearly, then falls "
                       f"linearly to 0; default: set by the task, else {recipe.lr}; with --from-scratch "
                       f"{scratch['lr']}")
    group = p.add_argument_group("more of optimization", advanced=True)
    group.add_argument("--precision", choices=["auto", *PRECISIONS], help="precision of training, by "
                       "autocast: the weights stay in float32; default: auto, bf16 where the device supports "
                       "it, else fp32")
    group.add_argument("--weight-decay", type=float, metavar="W", help="weight decay of matrices, not of "
                       f"biases and LayerNorm; default: set by the task, else {recipe.weight_decay}")
    group.add_argument("--warmup-ratio", type=float, metavar="F", help="fraction of all steps in which the "
                       f"learning rate rises; default: {recipe.warmup_ratio}")
    group.add_argument("--max-grad-norm", type=float, metavar="X", help="clip gradients to this norm; "
                       f"default: {recipe.max_grad_norm}")
    group.add_argument("--optimizer", choices=OPTIMIZERS, help="optimizer; default: set by the task, else "
                       f"{recipe.optimizer}")


def add_pretraining_options(p: CommandLineParser) -> _ArgumentGroup:
    group = p.add_argument_group(f"pre-training (--task {', '.join(PRETRAINING_TASKS)})", advanced=True)
    group.add_argument("--from-scratch", metavar="CONFIG", help="train a new model with random weights: a "
                       "config.json, a folder with one, or the hub id of a model with this architecture; not "
                       "with --ckpt")
    group.add_argument("--vocab-size", type=int, metavar="N", help="with --from-scratch: train a WordPiece "
                       "vocabulary of N tokens on --text, even if there is a tokenizer next to CONFIG")
    group.add_argument("--generator-size", type=float, metavar="F", help="width of the generator of --task "
                       "rtd, as a fraction of the discriminator's; default: 0.25")
    group.add_argument("--steps", type=int, metavar="N", help="number of optimizer steps, in place of "
                       "--epochs")
    group.add_argument("--gradient-accumulation-steps", type=int, metavar="N", help="batches per optimizer "
                       "step, each of --batch-size sentences; default: 8; with --from-scratch 1")
    group.add_argument("--save-steps", type=int, metavar="N", help="after every N optimizer steps, print the "
                       "losses and save a checkpoint from which the same command resumes; default: ten "
                       "times in all")
    group.add_argument("--save-fp16", action="store_true", help="save the weights in float16, in half the "
                       "file size")
    return group


def add_output_options(p: CommandLineParser) -> None:
    group = p.add_argument_group("output")
    group.add_argument("--output-dir", type=Path, default=Path("runs"), metavar="FOLDER",
                       help="folder that gets a folder for each run; default: runs")
    group.add_argument("--run-name", metavar="NAME", help="first part of the names of these folders; not "
                       "with several checkpoints; default: checkpoint and task")
    group.add_argument("--config", type=Path, metavar="FILE", default=SUPPRESS, help="take the options from "
                       "FILE: the result.json of a run, which is repeated, or the folder that has it; or a "
                       "TOML file with lines such as lr = 3e-4; options on the command line take precedence")


def add_tracker_options(p: CommandLineParser) -> _ArgumentGroup:
    group = p.add_argument_group("trackers", advanced=True)
    group.add_argument("--report-to", nargs="+", choices=TRACKERS, metavar="TRACKER", help="log losses, "
                       "learning rate and the scores on dev with "
                       f"{', '.join(TRACKERS)} or several of these, whose packages have to be installed; "
                       "tensorboard writes into the run folders; default: only result.json")
    return group
# fmt: on
