"""The program that gpu.py starts with torchrun: collectives, and training that is shared by processes.

    torchrun --nproc-per-node 1 tests/bench/gpu_process.py single cuda     the code for several, in one
    torchrun --nproc-per-node 2 tests/bench/gpu_process.py shared cuda     two processes, as in train.py

On a machine with a single GPU, nccl can be tested with one process only.
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
from tmft.io.distributed import Processes, init_distributed  # noqa: E402
from tmft.loop import fit  # noqa: E402
from tmft.models.families import config_from_dict, random_encoder  # noqa: E402
from tmft.pretraining.corpus import TokenizedCorpus  # noqa: E402
from tmft.pretraining.masking import Masking  # noqa: E402
from tmft.pretraining.pretraining_loop import PretrainingRecipe, pretrain  # noqa: E402
from tmft.pretraining.token_heads import MaskedLM  # noqa: E402
from tmft.runs.run_config import FineTuningRecipe  # noqa: E402
from tmft.runs.train_run import assemble_training  # noqa: E402
from tmft.sentence_encoder import SentenceEncoder  # noqa: E402
from tmft.training.checkpointing import TrainingCheckpoint  # noqa: E402
from tmft.training.multitask import make_training_tasks  # noqa: E402

RESULT_FILE = "TMFT_RESULT_FILE"  # environment variable: the file that the main process writes
SHAPE = {"model_type": "bert", "vocab_size": 8192, "hidden_size": 32, "num_hidden_layers": 2}
SHAPE |= {"num_attention_heads": 2, "intermediate_size": 64, "initializer_range": 0.1}
SHAPE |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


class OneAsSeveral(int):
    """The number 1, which compares as greater than 1: a single process then runs the code for several."""

    def __gt__(self, other: int) -> bool:
        return other < 2


def corpus_from_lists(token_ids: list[list[int]]) -> TokenizedCorpus:
    """Return tokenized sentences as a corpus for pre-training."""
    tokens = np.concatenate([np.array(ids, dtype=np.int32) for ids in token_ids])
    return TokenizedCorpus(tokens, np.concatenate([[0], np.cumsum([len(ids) for ids in token_ids])]))


def learn_together(processes: Processes) -> dict[str, list[float]]:
    """Return the losses of contrastive learning in mini-batches and of MLM.

    There is no dropout, so the losses do not depend on how the work is divided among the processes.
    """
    device, tokenizer = processes.device, load_tokenizer(ROOT / "data/twins/mlm")
    torch.manual_seed(0)
    model = SentenceEncoder(random_encoder(config_from_dict(SHAPE)), tokenizer).to(device)
    task = get_task("stsb", objective="multiple_negatives_ranking")
    lines = (ROOT / "data/sample/train.tsv").read_text(encoding="utf-8").splitlines()[1:65]
    first, second, scores = zip(*(line.split("\t") for line in lines), strict=True)
    pairs = Examples((list(first), list(second)), [float(score) for score in scores])
    tasks = make_training_tasks(task, model.dimensions, {"": {"train": pairs, "dev": pairs}})
    recipe = FineTuningRecipe(epochs=2, batch_size=16, lr=1e-3, precision="fp32", mini_batch_size=4)
    training_task, embed, callbacks = assemble_training(model, tasks, recipe, 0, processes)
    epochs = fit(model, training_task, recipe, 0, embed, callbacks)
    losses = {"pairs": [epoch.loss for epoch in epochs]}

    torch.manual_seed(0)
    model = MaskedLM(random_encoder(config_from_dict(SHAPE))).to(device)
    ids = tokenizer.encode_batch(pairs.sentences, add_special_tokens=True)
    corpus = corpus_from_lists(ids)
    recipe = PretrainingRecipe(
        batch_size=8, gradient_accumulation_steps=2, steps=6, lr=1e-3, save_steps=3, precision="fp32"
    )
    with tempfile.TemporaryDirectory() as folder:
        with TrainingCheckpoint(Path(folder) / "state.pt", {}, processes) as checkpoint:
            masking = Masking.from_tokenizer(tokenizer)
            log = list(pretrain(model, corpus, masking, recipe, 0, processes, checkpoint))
    losses["MLM, held out"] = [entry.held_out["mlm_loss"] for entry in log]
    losses["MLM, in training"] = [entry.train["mlm_loss"] for entry in log[1:]]
    return losses


def count_wrong_collectives(processes: Processes) -> int:
    """Return how many of seven statements about the collectives are false."""
    rank, device, count = processes.rank, processes.device, dist.get_world_size()
    total = sum(range(1, count + 1))
    by_all, by_first, by_none = (torch.nn.Parameter(torch.zeros(3, device=device)) for _ in range(3))
    by_all.grad = torch.full_like(by_all, rank + 1.0)
    if rank == 0:
        by_first.grad = torch.full_like(by_first, 5.0)
    processes.barrier()
    processes.all_reduce_gradients([by_all, by_first, by_none])
    double = torch.tensor(rank + 1.0, dtype=torch.float64, device=device)
    facts = [
        processes.all_gather_object({"rank": rank}) == [{"rank": n} for n in range(count)],
        processes.broadcast_object(f"of {rank}") == "of 0",
        processes.all_reduce_dict({"a": double, "b": 2 * double}) == {"a": total, "b": 2 * total},
        processes.all_reduce_(torch.full((2,), rank + 1.0, device=device)).tolist() == [total, total],
        by_all.grad.tolist() == [total] * 3,
        by_first.grad is not None and by_first.grad.tolist() == [5.0] * 3,
        by_none.grad is None,
    ]
    return len(facts) - sum(facts)


def main(mode: str, device: str) -> None:
    if mode == "single":
        dist.init_process_group("nccl" if device == "cuda" else "gloo")
        processes = Processes(0, OneAsSeveral(1), torch.device(device))
    else:
        processes = init_distributed(torch.device(device))
    result = {"wrong": count_wrong_collectives(processes)} | learn_together(processes)
    if processes.rank == 0:
        Path(os.environ[RESULT_FILE]).write_text(json.dumps(result), encoding="utf-8")
    processes.barrier()
    if mode == "single":
        dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
