"""Options that several commands share, each defined once. group: an argument group of argparse."""

from argparse import Namespace, _ArgumentGroup

from tmft.cli.parser import CommandLine
from tmft.data import SPLITS
from tmft.embedding.token_weights import TOKEN_WEIGHTS
from tmft.pooling import POOLINGS


# fmt: off
def add_device_option(group: _ArgumentGroup) -> None:
    group.add_argument("--device", default="auto", help="cpu, cuda, cuda:1, ...; default: auto, a GPU if "
                       "there is one")


def add_max_length_option(group: _ArgumentGroup, default: str = "as many as the model can read") -> None:
    group.add_argument("--max-length", type=int, metavar="TOKENS", help="cut sentences to this number of "
                       f"tokens; default: {default}")


def add_init_option(group: _ArgumentGroup) -> None:
    group.add_argument("--init", choices=["pretrained", "random"], help="weights of the model; random keeps "
                       "the architecture alone; default: pretrained")


def add_pooling_option(group: _ArgumentGroup) -> None:
    group.add_argument("--pooling", metavar="NAME", help=f"{', '.join(POOLINGS)}, or several as in max+mean; "
                       "default: the pooling saved with the model, else mean")


def add_token_weights_option(group: _ArgumentGroup, metavar: str = "NAME", how_estimated: str = "") -> None:
    group.add_argument("--token-weights", metavar=metavar, help="how tokens are weighted in the mean: "
                       f"{', '.join(TOKEN_WEIGHTS)}{how_estimated}; default: the weights saved with the "
                       "model, else all equal")


def add_split_option(group: _ArgumentGroup) -> None:
    group.add_argument("--split", choices=SPLITS, default="test", help="split of the task to score")


def add_data_folder_options(group: _ArgumentGroup, files: str = "test.tsv and dev.tsv") -> None:
    group.add_argument("--data", metavar="FOLDER", help=f"folder with {files} to use instead of the task's; "
                       "default: the task's own files")
    group.add_argument("--data-root", metavar="FOLDER", help="folder of task folders; default: data/")
    group.add_argument("--score-range", type=float, nargs=2, metavar=("LOW", "HIGH"), help="lowest and "
                       "highest score in the files; default: the task's")
# fmt: on


def check_data_folders(p: CommandLine, args: Namespace) -> None:
    """Raise InputError if both folders are given."""
    p.mutually_exclusive(args, "data", "data_root")
