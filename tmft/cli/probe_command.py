"""Measure how well a linear classifier reads the tokens of a text off each hidden state.

    python -m tmft probe data/twins/mlm sentences.txt
    python -m tmft probe data/twins/mlm-then-rtd sentences.txt --generator data/twins/mlm

One classifier (a probe) predicts which token is at a position, another which one comes next. A third one,
with --generator, predicts whether the token was replaced by the generator. They are trained on four fifths
of the sentences and scored on the rest.
"""

from argparse import Namespace
from pathlib import Path

from tmft.cli.options import add_model_options, load_mean_pooling_model
from tmft.cli.parser import CommandLineParser
from tmft.datasets.task_lookup import read_sentences
from tmft.evaluation.probes import load_generator, probe_layers
from tmft.io.formatting import percent, text_table


def main(argv: list[str] | None = None) -> None:
    args = parse_args(argv)
    model, sentences = load_mean_pooling_model(args), read_sentences(args.file)
    generator = load_generator(args.generator, model) if args.generator else None
    print(f"{args.model}: {len(sentences)} sentences of {args.file}, every fifth for testing", flush=True)
    probes = probe_layers(model, sentences, generator)
    cells = [
        [str(layer), *map(percent, (probe.token_accuracy, probe.next_token_accuracy, probe.replaced_auc))]
        for layer, probe in enumerate(probes)
    ]
    header = ["layer", "token accuracy x 100", "next token accuracy x 100", "replaced ROC AUC x 100"]
    print(f"\n{text_table([header, *cells])}")


# fmt: off
def parse_args(argv: list[str] | None = None) -> Namespace:
    p = CommandLineParser(__doc__)
    add_model_options(p)
    p.add_argument("file", metavar="FILE", type=Path, help="sentences: a text with one per line, or a TSV "
                   "file with a column sentence, or sentence1 and sentence2")
    p.add_argument("--generator", metavar="MODEL", help="hub id or folder of a model with a head of masked "
                   "language modeling and the same vocabulary; default: no tokens are replaced")
    return p.parse_args(argv)
# fmt: on
