"""Options that several commands share, each defined once. The functions add them to a group of a parser."""

from argparse import Namespace, _ArgumentGroup

from tmft.checkpoints.weights import DTYPES
from tmft.cli.parser import CommandLineParser
from tmft.data import SPLITS
from tmft.embedding.token_weights import TOKEN_WEIGHTS
from tmft.pooling import POOLINGS


# fmt: off
def add_device_option(group: _ArgumentGroup) -> None:
    group.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:1, ...; default: auto, a GPU "
                       "if there is one")


def add_dtype_option(group: _ArgumentGroup) -> None:
    group.add_argument("--dtype", choices=["auto", *DTYPES], help="type of the weights in memory, in which "
                       "the layers compute; auto: the type in which they are stored; default: float32")


def add_max_length_option(group: _ArgumentGroup, default: str = "the limit of the model") -> None:
    """Add --max-length. default: description of the value without this option."""
    group.add_argument("--max-length", type=int, metavar="TOKENS", help="truncate sentences to this number "
                       f"of tokens, special tokens included; default: {default}")


def add_init_option(group: _ArgumentGroup) -> None:
    group.add_argument("--init", choices=["pretrained", "random"], help="random: use the architecture of the "
                       "checkpoint with random weights; default: pretrained")


def add_pooling_option(group: _ArgumentGroup) -> None:
    group.add_argument("--pooling", metavar="NAME", help="how the vectors of the tokens become one: "
                       f"{', '.join(POOLINGS)} (first output of a T5 decoder), or several, concatenated: "
                       "max+mean; default: the pooling saved with the model, else mean "
                       "(lasttoken for a causal language model)")


def add_token_weights_option(
    group: _ArgumentGroup, metavar: str, idf_corpus: str, frequent_words: str
) -> None:
    """Add --token-weights.

    idf_corpus: the text in which idf is counted. frequent_words: the frequent words that content-words drops.
    """
    group.add_argument("--token-weights", metavar=metavar, help="how tokens are weighted in the mean: "
                       f"{', '.join(TOKEN_WEIGHTS)}. no-special: 0 for [CLS] and [SEP]; no-prompt: 0 for the "
                       "words of the prompt; content-words: 0 for special tokens, punctuation, subwords and "
                       f"{frequent_words}; idf: inverse document frequency in {idf_corpus}; mask-token: 1 "
                       "for [MASK], 0 for all others; default: the weights saved with the model, else "
                       "uniform")


def add_split_option(group: _ArgumentGroup) -> None:
    group.add_argument("--split", choices=SPLITS, default="test", help="split of the task to score")


def add_data_folder_options(group: _ArgumentGroup, files: str = "test.tsv and dev.tsv") -> None:
    """Add --data, --data-root and --score-range. files: names of the files in the folder of --data."""
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


def check_data_folders(p: CommandLineParser, args: Namespace) -> None:
    """Raise InputError if both --data and --data-root are given."""
    p.mutually_exclusive(args, "data", "data_root")
