"""The options of train.py, in groups named after features.

The attribute of an option has the name of the field that it sets, of FineTuningConfig, FineTuningRecipe,
PretrainingConfig, PretrainingRecipe or the config of an objective; see fields_from_args.
"""

from argparse import Namespace, _ArgumentGroup
from pathlib import Path

from tmft.cli.options import (
    add_data_folder_options,
    add_device_option,
    add_init_option,
    add_max_length_option,
    add_pooling_option,
    add_token_weights_option,
)
from tmft.cli.parser import CommandLine
from tmft.device import PRECISIONS
from tmft.errors import check_range
from tmft.losses.nested import ALL_LAYERS
from tmft.losses.registry import OBJECTIVES
from tmft.metrics import METRICS
from tmft.runs.pretrain import PRETRAINING_TASKS
from tmft.runs.run_config import FROM_SCRATCH_DEFAULTS, FineTuningRecipe, parse_layer_list
from tmft.tasks import TASKS
from tmft.training.gradient_surgery import GRADIENT_SURGERY
from tmft.training.multitask import STOPPING_STRATEGIES, TASK_SAMPLING
from tmft.training.optimizers import OPTIMIZERS

Groups = list[_ArgumentGroup]
# The dataclasses whose fields are hyperparameters of an objective, each once.
OBJECTIVE_CONFIGS = tuple(dict.fromkeys(filter(None, (entry.config_class for entry in OBJECTIVES.values()))))
TRAINABLE_TASKS = [name for name, task in TASKS.items() if task.objective]  # the others are only scored


def add_train_options(p: CommandLine) -> tuple[Groups, Groups]:
    """Add all options; return the groups that are for fine-tuning only, and for pre-training only."""
    add_run_options(p)
    fine_tuning_groups = [
        add_model_options(p),
        add_data_options(p),
        add_loss_options(p),
        add_several_tasks_options(p),
        add_contrastive_options(p),
        add_head_options(p),
        add_distillation_options(p),
        add_all_layers_options(p),
    ]
    add_recipe_options(p)
    pretraining_groups = [add_pretraining_options(p)]
    add_output_options(p)
    return fine_tuning_groups, pretraining_groups


def check_train_options(
    p: CommandLine, args: Namespace, fine_tuning_groups: Groups, pretraining_groups: Groups
) -> None:
    """Fill in the default task. Raises InputError for options that exclude each other, or have no effect."""
    args.task = " ".join(args.task or ["distillation" if args.teacher else "stsb"])
    unused = fine_tuning_groups if args.task in PRETRAINING_TASKS else pretraining_groups
    p.reject_unused(args, unused, f"--task {args.task}")
    for first, second in (("seed", "num_seeds"), ("epochs", "steps"), ("data", "data_root")):
        p.mutually_exclusive(args, first, second)
    check_range("num_seeds", 1 if args.num_seeds is None else args.num_seeds, 1)


# fmt: off
def add_run_options(p: CommandLine) -> None:
    group = p.add_argument_group("what to train")
    group.add_argument("--ckpt", "--model", nargs="+", metavar="MODEL", help="hub id[@revision] or folder "
                       "of a checkpoint, or several; default: a small ELECTRA that comes with tmft")
    group.add_argument("--task", nargs="+", metavar="TASK[:OBJECTIVE]",
                       help=f"{', '.join([*TRAINABLE_TASKS, *PRETRAINING_TASKS])}; several tasks are trained "
                       "together; default: stsb, or distillation with --teacher")
    group.add_argument("--text", type=Path, nargs="+", metavar="FILE", help="text with a sentence per line, "
                       "also .gz or .xz, for pre-training (mlm, rtd, span) or distillation")
    group.add_argument("--num-seeds", type=int, metavar="N", help="run with each of the seeds 0 to N-1; "
                       "default: 1")
    group.add_argument("--seed", type=int, metavar="N", help="run with this seed alone")
    add_max_length_option(group, "as many as the model can read; 128 for pre-training")
    add_device_option(group)


def add_model_options(p: CommandLine) -> _ArgumentGroup:
    group = p.add_argument_group("model")
    group.add_argument("--layer", metavar="L", help="number of layers to keep: 9; 0-12, 3,6,9 or all for a "
                       "sweep; auto searches the best one with short runs, at a quarter of the cost of a "
                       "sweep; default: all layers are kept")
    group.add_argument("--keep-layers", type=parse_layer_list, metavar="0,2,5", help="indices of the layers "
                       "to keep, from 0, instead of the first ones; default: the first ones, see --layer")
    add_init_option(group)
    group.add_argument("--init-from", metavar="RUN", help="folder of an earlier run of --ckpt at the same "
                       "layer, to start from its weights; {layer} and {seed} are replaced by those of each "
                       "run: runs/electra-wordsim-layer{layer}-seed0")
    add_pooling_option(group)
    add_token_weights_option(group)
    group.add_argument("--projection", type=int, metavar="D", help="add a linear map to D dimensions after "
                       "the pooling, then scale to length 1; default: none")
    return group


def add_data_options(p: CommandLine) -> _ArgumentGroup:
    group = p.add_argument_group("data")
    add_data_folder_options(group, "train.tsv, dev.tsv and test.tsv")
    group.add_argument("--train-fraction", type=float, metavar="F", help="fraction of the training examples "
                       "to use; default: 1")
    return group


def add_loss_options(p: CommandLine) -> _ArgumentGroup:
    group = p.add_argument_group("loss and selection")
    group.add_argument("--objective", metavar="NAME", help=f"loss: {', '.join(OBJECTIVES)}; default: the "
                       "task's")
    group.add_argument("--selection-metric", metavar="NAME", help="metric on dev that selects the best "
                       f"epoch: {', '.join(METRICS)}; default: the task's")
    group.add_argument("--mini-batch-size", type=int, metavar="N", help="embed N examples of a batch at a "
                       "time, with the same gradient in less memory (gradient caching); default: the "
                       "task's, else the whole batch")
    group.add_argument("--freeze-layers", type=int, nargs="?", const=-1, metavar="L", help="freeze the "
                       "embeddings and the first L layers, or without L the whole encoder; default: nothing "
                       "is frozen")
    return group


def add_several_tasks_options(p: CommandLine) -> _ArgumentGroup:
    group = p.add_argument_group("several tasks")
    group.add_argument("--task-sampling", choices=TASK_SAMPLING, help="joint: a batch of each task in a "
                       "step; round-robin: the tasks alternate; sequential: one task after the other; "
                       "proportional: by the size of their data sets; default: joint")
    group.add_argument("--stopping-strategy", choices=STOPPING_STRATEGIES, help="end an epoch of joint or "
                       "round-robin when the first data set is exhausted, or when all are; default: "
                       "first_exhausted")
    group.add_argument("--loss-weights", type=float, nargs="+", metavar="W", help="weight of the loss of "
                       "each task, in the order of --task; default: 1")
    group.add_argument("--gradient-surgery", choices=GRADIENT_SURGERY, help="log: log the cosines of the "
                       "tasks' gradients; pcgrad: also remove what conflicts; default: none")
    return group


def add_contrastive_options(p: CommandLine) -> _ArgumentGroup:
    group = p.add_argument_group("contrastive learning (multiple_negatives_ranking)")
    group.add_argument("--temperature", type=float, metavar="T", help="temperature of the softmax; default: "
                       "the task's, else 0.05")
    group.add_argument("--no-symmetric", dest="symmetric", action="store_const", const=False,
                       help="find the positive of each anchor only; default: also the anchor of each "
                       "positive")
    group.add_argument("--mask-duplicate-anchors", action="store_const", const=True, help="do not use the "
                       "positives of equal anchors as negatives; default: they are used")
    return group


def add_head_options(p: CommandLine) -> _ArgumentGroup:
    group = p.add_argument_group("heads (objectives with a trained head)")
    group.add_argument("--dropout", type=float, metavar="P", help="dropout probability in the head; "
                       "default: the task's, else 0")
    group.add_argument("--dropout-after-features", action="store_const", const=True, help="apply dropout "
                       "after the features of the head instead of before the head; default: before")
    group.add_argument("--rescale-scores", dest="rescale_to_labels", action="store_const", const=True,
                       help="map the predicted score into the range of the labels; default: no")
    return group


def add_distillation_options(p: CommandLine) -> _ArgumentGroup:
    group = p.add_argument_group("distillation")
    group.add_argument("--teacher", metavar="MODEL", help="hub id or folder of a model whose embeddings of "
                       "--text are learned, with --task distillation; default: none")
    group.add_argument("--max-lines", type=int, metavar="N", help="use N lines of --text, drawn at random; "
                       "default: all")
    group.add_argument("--similarity-weight", type=float, metavar="W", help="weight of a second loss, on "
                       "the cosine similarities within a batch; default: 0")
    return group


def add_all_layers_options(p: CommandLine) -> _ArgumentGroup:
    group = p.add_argument_group("models that can be truncated after training")
    group.add_argument("--all-layers", choices=ALL_LAYERS, help="train all layers in one run. mean: the "
                       "mean of their losses; sample: of the last layer and another one drawn in each step; "
                       "self-distill: the last layer is the teacher of the others; default: only the last "
                       "kept layer")
    group.add_argument("--matryoshka-dims", type=int, nargs="+", metavar="D", help="also train the first D "
                       "dimensions, so that they can be used alone; default: none")
    return group


def add_recipe_options(p: CommandLine) -> None:
    recipe, scratch = FineTuningRecipe(), FROM_SCRATCH_DEFAULTS
    group = p.add_argument_group("recipe")
    group.add_argument("--epochs", type=int, metavar="N", help="number of epochs; default: the task's, else "
                       f"{recipe.epochs}")
    group.add_argument("--batch-size", type=int, metavar="N", help="examples per batch; default: the "
                       f"task's, else {recipe.batch_size}; from scratch {scratch['batch_size']}")
    group.add_argument("--lr", type=float, help=f"peak learning rate; default: {recipe.lr}, from scratch "
                       f"{scratch['lr']}")
    group.add_argument("--weight-decay", type=float, metavar="W", help="weight decay of matrices, not of "
                       f"biases and LayerNorm; default: {recipe.weight_decay}")
    group.add_argument("--warmup-ratio", type=float, metavar="F", help="fraction of all steps in which the "
                       f"learning rate rises; default: {recipe.warmup_ratio}")
    group.add_argument("--max-grad-norm", type=float, metavar="X", help="clip gradients to this norm; "
                       f"default: {recipe.max_grad_norm}")
    group.add_argument("--optimizer", choices=OPTIMIZERS, help=f"default: {recipe.optimizer}")
    group.add_argument("--precision", choices=["auto", *PRECISIONS], help="precision of training; default: "
                       "auto, bf16 where the device supports it")


def add_pretraining_options(p: CommandLine) -> _ArgumentGroup:
    group = p.add_argument_group("pre-training (--task mlm, rtd, span)")
    group.add_argument("--from-scratch", metavar="CONFIG", help="config.json, folder or hub id of an "
                       "architecture to train from random weights, instead of --ckpt")
    group.add_argument("--vocab-size", type=int, metavar="N", help="train a WordPiece vocabulary of N "
                       "tokens on the text")
    group.add_argument("--generator-size", type=float, metavar="F", help="width of the generator of --task "
                       "rtd, as a fraction of the discriminator's; default: 0.25")
    group.add_argument("--steps", type=int, metavar="N", help="number of optimizer steps, instead of "
                       "--epochs")
    group.add_argument("--gradient-accumulation-steps", type=int, metavar="N", help="batches per optimizer "
                       "step; default: 8, from scratch 1")
    group.add_argument("--save-steps", type=int, metavar="N", help="print losses and save a checkpoint to "
                       "resume from every N steps; default: ten times in all")
    group.add_argument("--save-fp16", action="store_true", help="save the weights in float16: half the file "
                       "size")
    return group


def add_output_options(p: CommandLine) -> None:
    group = p.add_argument_group("output")
    group.add_argument("--output-dir", type=Path, default=Path("runs"), metavar="FOLDER",
                       help="folder in which each run gets a folder")
    group.add_argument("--run-name", metavar="NAME", help="first part of the name of the run folders; "
                       "default: made of checkpoint and task")
# fmt: on
