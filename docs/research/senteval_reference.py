"""Compare scores of transfer tasks with those of SentEval's own code, on the same embeddings.

    git clone https://github.com/facebookresearch/SentEval
    python docs/research/senteval_reference.py SentEval CHECKPOINT DATA_ROOT cr trec sst2 --layer 3

DATA_ROOT holds senteval/, mrpc/ and so on, as python -m tmft data writes them. SentEval sorts, splits, fits
and scores with its own code; the embeddings and the texts are the same. Its code needs CUDA and Python 3.10
or
older: `shim` replaces what needs them. It imports scikit-learn. For each task the scores and the seconds,
without encoding, of both are printed. OMP_NUM_THREADS=1 makes the seconds comparable.
"""

import argparse
import inspect
import logging
import sys
import time
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace

import torch

from tmft import SentenceEncoder
from tmft.data import SPLITS, read_examples
from tmft.datasets.task_lookup import get_task
from tmft.evaluation.classification import (
    DEFAULT_CONFIG,
    PROTOTYPING_CONFIG,
    SEED,
    evaluate_classification,
    evaluate_relatedness,
    read_splits,
)
from tmft.tasks import GROUPS, Task

PROTOCOLS = {"full": DEFAULT_CONFIG, "fast": PROTOTYPING_CONFIG}


class CpuTorch:
    """torch, except that CUDA is the CPU."""

    cuda = SimpleNamespace(
        FloatTensor=torch.FloatTensor, is_available=lambda: True, manual_seed=lambda seed: None
    )

    def device(self, name: str) -> torch.device:
        return torch.device("cpu")

    def __getattr__(self, name: str):
        return getattr(torch, name)


def shim(checkout: Path) -> None:
    """Make SentEval run on a CPU, and on Python 3.11 and later."""
    inspect.getargspec = inspect.getfullargspec
    sys.path.insert(0, str(checkout))
    import senteval.tools.classifier
    import senteval.tools.relatedness

    senteval.tools.classifier.torch = senteval.tools.relatedness.torch = CpuTorch()
    torch.Tensor.cuda = torch.nn.Module.cuda = lambda self: self


def run_senteval(encode, task: Task, read, config) -> dict:
    """Return the result of SentEval's evaluation of a task, without its files, which have another format."""
    from senteval import binary, mrpc, sick, sst, trec
    from senteval.utils import dotdict

    names = ("X_A", "X_B", "y") if len(task.columns) == 2 else ("X", "y")
    data = []  # of each split: {name: column}, with texts as lists of words
    for examples in read_splits(task, read, "test"):
        columns = [[text.split() for text in column] for column in examples.texts]
        data.append(dict(zip(names, [*columns, list(examples.labels)], strict=True)))

    def make(evaluation_class: type, **content):
        evaluation = evaluation_class.__new__(evaluation_class)
        vars(evaluation).update(content, seed=SEED)
        return evaluation

    if len(data) == 1:
        texts = list(zip(*data[0].values(), strict=True))
        positive, negative = ([text for text, label in texts if label == number] for number in (1, 0))
        evaluation = binary.BinaryClassifierEval(positive, negative)
    elif len(data) == 2 and len(names) == 2:
        evaluation = make(trec.TRECEval, train=data[0], test=data[1])
    elif len(data) == 2:
        evaluation = make(mrpc.MRPCEval, mrpc_data={"train": data[0], "test": data[1]})
    elif len(names) == 3:
        evaluation_class = sick.SICKEntailmentEval if task.classes else sick.SICKRelatednessEval
        evaluation = make(evaluation_class, sick_data=dict(zip(SPLITS, data, strict=True)))
    else:
        data = dict(zip(SPLITS, data, strict=True))
        evaluation = make(sst.SSTEval, sst_data=data, nclasses=len(task.classes), task_name="")
    classifier = {
        "nhid": 0,
        "optim": config.optimizer,
        "batch_size": config.batch_size,
        "tenacity": config.tenacity,
        "epoch_size": config.epoch_size,
    }
    params = dotdict(usepytorch=True, kfold=config.folds, batch_size=128, nhid=0, classifier=classifier)
    return evaluation.run(params, lambda params, batch: encode([" ".join(text) for text in batch]).numpy())


def compare(encode, name: str, data_root: str, config=DEFAULT_CONFIG) -> dict:
    """Evaluate a task with both: {"tmft": result, "SentEval": result, "seconds": (tmft, SentEval)}."""
    task = get_task(name, data_root=data_root)
    read = cache(partial(read_examples, task))
    vectors = {}

    def encode_once(texts: list[str]) -> torch.Tensor:
        if new := [text for text in dict.fromkeys(texts) if text not in vectors]:
            for text, vector in zip(new, encode(new), strict=True):
                vectors[text] = vectors[" ".join(text.split())] = vector
        return torch.stack([vectors[text] for text in texts])

    for examples in read_splits(task, read, "test"):
        encode_once(examples.sentences)
    result, seconds = {}, []
    evaluate = evaluate_relatedness
    if task.task_type == "classification":
        evaluate = partial(evaluate_classification, config=config)
    for name, run in (("tmft", evaluate), ("SentEval", partial(run_senteval, config=config))):
        start = time.perf_counter()
        result[name] = run(encode_once, task, read)
        seconds.append(time.perf_counter() - start)
    return result | {"seconds": tuple(seconds)}


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("senteval", type=Path, help="a checkout of facebookresearch/SentEval")
    parser.add_argument("checkpoint", help="folder of an encoder")
    parser.add_argument("data_root", help="folder of folders of canonical TSV files")
    parser.add_argument("tasks", nargs="*", default=GROUPS["classification"],
                        help="tasks of the type classification or relatedness")  # fmt: skip
    parser.add_argument("--layer", type=int, help="hidden state; the last one if not given")
    parser.add_argument("--protocol", choices=PROTOCOLS, default="full")
    options = parser.parse_args(argv)
    shim(options.senteval)
    logging.disable()
    model = SentenceEncoder.from_pretrained(options.checkpoint, layer=options.layer).eval()
    for name in options.tasks:
        result = compare(
            lambda texts: torch.from_numpy(model.encode(texts)),
            name,
            options.data_root,
            PROTOCOLS[options.protocol],
        )
        print(report(name, result), flush=True)


def report(name: str, result: dict) -> str:
    """Return a line with the scores of both.

    SentEval calls them acc, devacc, f1 in percent, or pearson, devpearson, spearman, mse.
    """
    ours, reference_scores = result["tmft"], result["SentEval"]
    senteval_names = {"accuracy": "acc", "dev_accuracy": "devacc", "f1": "f1", "dev_pearson": "devpearson"}
    cells = []
    for key, value in ours.items():
        reference = reference_scores.get(senteval_names.get(key, key))
        if reference is not None:
            scale = 100 if key in ("accuracy", "dev_accuracy", "f1") else 1
            cells.append(f"{key} {scale * value:.8g} {reference:.8g}")
    seconds = "{:.1f} s and {:.1f} s".format(*result["seconds"])
    return f"{name:15} tmft, SentEval: {' | '.join(cells)} | {seconds}"


if __name__ == "__main__":
    main()
