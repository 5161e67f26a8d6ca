"""What gpu.py starts by torchrun: the collectives, fine-tuning and pre-training shared by processes.

    torchrun --nproc-per-node 1 tests/bench/gpu_process.py alone cuda      one that goes the way of several
    torchrun --nproc-per-node 2 tests/bench/gpu_process.py shared cuda     two, as train.py would have them

On a machine with a single GPU nccl can be tried with one process only.
"""

import json
import os
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

from tmft.checkpoints.tokenizers import load_tokenizer  # noqa: E402
from tmft.data import Examples  # noqa: E402
from tmft.datasets.task_lookup import get_task  # noqa: E402
from tmft.distributed import Processes, init_distributed  # noqa: E402
from tmft.models.registry import config_from_dict, random_encoder  # noqa: E402
from tmft.pretraining.corpus import Sentences  # noqa: E402
from tmft.pretraining.heads import MaskedLM  # noqa: E402
from tmft.pretraining.loop import PretrainingRecipe  # noqa: E402
from tmft.pretraining.loop import fit as pretrain  # noqa: E402
from tmft.pretraining.masking import Masking  # noqa: E402
from tmft.sentence_encoder import SentenceEncoder  # noqa: E402
from tmft.training.checkpointing import State  # noqa: E402
from tmft.training.loop import Recipe, fit  # noqa: E402
from tmft.training.multitask import lessons_of  # noqa: E402

WRITTEN = "TMFT_FOUND"  # environment variable with the file that the first process writes
SHAPE = {"model_type": "bert", "vocab_size": 8192, "hidden_size": 32, "num_hidden_layers": 2}
SHAPE |= {"num_attention_heads": 2, "intermediate_size": 64, "initializer_range": 0.1}
SHAPE |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


class One(int):
    """The number 1 that counts as more than 1: with it a single process goes the way of several."""

    def __gt__(self, other: int) -> bool:
        return other < 2


def end_to_end(token_ids: list[list[int]]) -> Sentences:
    """Sentences as pre-training reads them."""
    tokens = np.concatenate([np.array(ids, dtype=np.int32) for ids in token_ids])
    return Sentences(tokens, np.concatenate([[0], np.cumsum([len(ids) for ids in token_ids])]))


def learn_together(processes: Processes) -> dict[str, list[float]]:
    """Losses of pairs and their negatives in chunks, and of masked words; without dropout, so that they do
    not depend on who does what."""
    device, tokenizer = processes.device, load_tokenizer(ROOT / "data/twins/mlm")
    torch.manual_seed(0)
    model = SentenceEncoder(random_encoder(config_from_dict(SHAPE)), tokenizer).to(device)
    task = get_task("stsb", objective="multiple_negatives_ranking")
    lines = (ROOT / "data/sample/train.tsv").read_text(encoding="utf-8").splitlines()[1:65]
    first, second, _ = zip(*(line.split("\t") for line in lines), strict=True)
    pairs = Examples((list(first), list(second)), [1.0] * len(lines))
    lessons = lessons_of(task, model.dimensions, {"": {"train": pairs, "dev": pairs}})
    recipe = Recipe(epochs=2, batch_size=16, lr=1e-3, precision="fp32", chunk=4)
    losses = {"pairs": [epoch.loss for epoch in fit(model, lessons, recipe, 0, processes)]}

    torch.manual_seed(0)
    model = MaskedLM(random_encoder(config_from_dict(SHAPE))).to(device)
    ids = tokenizer.encode_batch(pairs.sentences, special=True)
    sentences = end_to_end(ids)
    recipe = PretrainingRecipe(batch_size=8, accumulate=2, steps=6, lr=1e-3, save_every=3, precision="fp32")
    with tempfile.TemporaryDirectory() as folder, State(Path(folder) / "state.pt", {}, processes) as state:
        masking = Masking.of(tokenizer)
        records = list(pretrain(model, sentences, masking, recipe, 0, processes, state))
    losses["masked words"] = [record.held_out["mlm_loss"] for record in records]
    losses["masked words, in training"] = [record.train["mlm_loss"] for record in records[1:]]
    return losses


def wrong_collectives(processes: Processes) -> int:
    """How many of seven facts do not hold."""
    rank, device, count = processes.rank, processes.device, dist.get_world_size()
    total = sum(range(1, count + 1))
    one, other, nobody = (torch.nn.Parameter(torch.zeros(3, device=device)) for _ in range(3))
    one.grad = torch.full_like(one, rank + 1.0)
    if rank == 0:
        other.grad = torch.full_like(other, 5.0)
    processes.barrier()
    processes.all_reduce_gradients([one, other, nobody])
    double = torch.tensor(rank + 1.0, dtype=torch.float64, device=device)
    facts = [
        processes.all_gather_object({"rank": rank}) == [{"rank": n} for n in range(count)],
        processes.broadcast_object(f"of {rank}") == "of 0",
        processes.all_reduce_dict({"a": double, "b": 2 * double}) == {"a": total, "b": 2 * total},
        processes.all_reduce_(torch.full((2,), rank + 1.0, device=device)).tolist() == [total, total],
        one.grad.tolist() == [total] * 3,
        other.grad is not None and other.grad.tolist() == [5.0] * 3,
        nobody.grad is None,
    ]
    return len(facts) - sum(facts)


def main(how: str, device: str) -> None:
    if how == "alone":
        dist.init_process_group("nccl" if device == "cuda" else "gloo")
        processes = Processes(0, One(1), torch.device(device))
    else:
        processes = init_distributed(device)
    found = {"wrong": wrong_collectives(processes)} | learn_together(processes)
    if processes.rank == 0:
        Path(os.environ[WRITTEN]).write_text(json.dumps(found), encoding="utf-8")
    processes.barrier()
    if how == "alone":
        dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
