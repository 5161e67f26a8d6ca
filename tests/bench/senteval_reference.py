"""Our figures of transfer tasks beside those of SentEval's own code, on the same vectors.

    git clone https://github.com/facebookresearch/SentEval
    python tests/bench/senteval_reference.py SentEval CHECKPOINT DATA_ROOT cr trec sst2 --layer 3

DATA_ROOT holds senteval/, mrpc/ and so on, as data/get_data.py writes them. SentEval sorts, folds, fits and
scores by itself; the embeddings and the texts are the same. Its code is for CUDA and for Python 3.10 and
older: `shim` replaces what needs them. It imports scikit-learn. Printed per task: the figures of both and the
seconds of both, without encoding. OMP_NUM_THREADS=1 makes the seconds comparable.
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


def theirs(encode, task: Task, read, config) -> dict:
    """The result of SentEval's evaluation of a task, made without its files: they have another format."""
    from senteval import binary, mrpc, sick, sst, trec
    from senteval.utils import dotdict

    names = ("X_A", "X_B", "y") if len(task.columns) == 2 else ("X", "y")
    data = []  # of each part {name: its column}, texts as lists of words
    for examples in read_splits(task, read, "test"):
        columns = [[text.split() for text in column] for column in examples.texts]
        data.append(dict(zip(names, [*columns, list(examples.labels)], strict=True)))

    def made(kind: type, **content):
        evaluation = kind.__new__(kind)
        vars(evaluation).update(content, seed=SEED)
        return evaluation

    if len(data) == 1:
        texts = list(zip(*data[0].values(), strict=True))
        positive, negative = ([text for text, label in texts if label == number] for number in (1, 0))
        evaluation = binary.BinaryClassifierEval(positive, negative)
    elif len(data) == 2 and len(names) == 2:
        evaluation = made(trec.TRECEval, train=data[0], test=data[1])
    elif len(data) == 2:
        evaluation = made(mrpc.MRPCEval, mrpc_data={"train": data[0], "test": data[1]})
    elif len(names) == 3:
        kind = sick.SICKEntailmentEval if task.classes else sick.SICKRelatednessEval
        evaluation = made(kind, sick_data=dict(zip(SPLITS, data, strict=True)))
    else:
        data = dict(zip(SPLITS, data, strict=True))
        evaluation = made(sst.SSTEval, sst_data=data, nclasses=len(task.classes), task_name="")
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
    """{"ours": result, "theirs": result, "seconds": (ours, theirs)} of a task."""
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
    for who, run in (("ours", evaluate), ("theirs", partial(theirs, config=config))):
        start = time.perf_counter()
        result[who] = run(encode_once, task, read)
        seconds.append(time.perf_counter() - start)
    return result | {"seconds": tuple(seconds)}


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("senteval", type=Path, help="a checkout of facebookresearch/SentEval")
    parser.add_argument("checkpoint", help="folder of an encoder")
    parser.add_argument("data_root", help="folder of folders of canonical TSV files")
    parser.add_argument("tasks", nargs="*", default=GROUPS["classification"], help="rows of SCORED")
    parser.add_argument("--layer", type=int, help="hidden state; the last one if not given")
    parser.add_argument("--protocol", choices=PROTOCOLS, default="full")
    options = parser.parse_args(argv)
    shim(options.senteval)
    logging.disable()
    model = SentenceEncoder.from_pretrained(options.checkpoint, layer=options.layer).eval()
    for name in options.tasks:
        found = compare(
            lambda texts: torch.from_numpy(model.encode(texts)),
            name,
            options.data_root,
            PROTOCOLS[options.protocol],
        )
        print(report(name, found), flush=True)


def report(name: str, found: dict) -> str:
    """SentEval calls its figures acc, devacc, f1 in percent, or pearson, devpearson, spearman, mse."""
    ours, other = found["ours"], found["theirs"]
    same = {"accuracy": "acc", "dev_accuracy": "devacc", "f1": "f1", "dev_pearson": "devpearson"}
    figures = []
    for key, value in ours.items():
        reference = other.get(same.get(key, key))
        if reference is not None:
            scale = 100 if key in ("accuracy", "dev_accuracy", "f1") else 1
            figures.append(f"{key} {scale * value:.8g} {reference:.8g}")
    seconds = "{:.1f} s, theirs {:.1f} s".format(*found["seconds"])
    return f"{name:15} ours, theirs: {' | '.join(figures)} | {seconds}"


if __name__ == "__main__":
    main()
