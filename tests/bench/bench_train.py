"""Benchmarks of training: a step compared with other libraries, each technique switched off."""

import json
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from unittest.mock import patch

import torch
from bench import measure

from tmft import SentenceEncoder
from tmft.checkpoints.tokenizers import load_tokenizer
from tmft.data import Examples, read_examples
from tmft.datasets.task_lookup import get_task
from tmft.loop import Recipe, fit
from tmft.loss import CosineMSE
from tmft.models.families import FAMILIES, config_from_dict, random_encoder
from tmft.packing import PackedBatch
from tmft.speed.cuda_graphs import GraphedEmbedder
from tmft.speed.occurring_words import OccurringWords
from tmft.training_task import PackedEmbedder, TrainingTask

# The sizes of published models, by name: content of config.json.
WIDTH_768 = {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072}
BASE_WIDTH = {
    "all-mpnet-base-v2": WIDTH_768
    | {"model_type": "mpnet", "vocab_size": 30527, "max_position_embeddings": 514},
    "ModernBERT-base": WIDTH_768
    | {"model_type": "modernbert", "vocab_size": 50368, "intermediate_size": 1152},
}


@dataclass
class Work:
    """The training pairs of a round, and the training steps of tmft and its peers on them.

    all_texts: of the whole training set, whose tokens are the ones that tmft trains. size: pairs in a step.
    device: where every model trains.
    """

    task: object
    texts: tuple[list[str], list[str]]
    scores: list[float]
    all_texts: list[str]
    size: int = 32
    device: str = "cpu"

    @classmethod
    def read(cls, args, size: int = 32, device: str = "cpu") -> "Work":
        """Read size * args.steps pairs from the folder args.data; too few pairs are repeated."""
        task = get_task("stsb", data=str(args.data))
        examples = read_examples(task, "train")
        first, second = examples.texts
        order = torch.randperm(len(examples), generator=torch.Generator().manual_seed(0)).tolist()
        order = (order * -(-size * args.steps // len(order)))[: size * args.steps]
        texts = [first[i] for i in order], [second[i] for i in order]
        return cls(task, texts, [examples.labels[i] for i in order], first + second, size, device)

    def tmft(self, ckpt, layer, precision, *changes, cuda_graphs=True):
        """Return a round of tmft's fit with the first layers of a checkpoint, in ms per step.

        It trains the word embeddings of all training texts.

        The last epoch is timed: the first one creates the averages of the optimizer, which the loop of a peer
        keeps from round to round; on a GPU the first two capture CUDA graphs. changes: unittest.mock patches
        that are applied during the round.
        """
        model = SentenceEncoder.from_pretrained(ckpt, layer).to(self.device)
        every_id = model.tokenize(self.all_texts)
        words = patch(
            "tmft.optimizers.OccurringWords", lambda embeddings, *_: OccurringWords(embeddings, every_id)
        )
        few = Examples(tuple(side[:2] for side in self.texts), [0.0, 5.0])
        epochs = 3 if torch.device(self.device).type == "cuda" else 2
        recipe = Recipe(epochs=epochs, batch_size=self.size, precision=precision)

        def run():
            embed = (GraphedEmbedder if cuda_graphs else PackedEmbedder)(model)
            with ExitStack() as stack:
                for change in (words, *changes):
                    stack.enter_context(change)
                examples = Examples(self.texts, self.scores)
                task = TrainingTask(self.task, CosineMSE(), {"train": examples, "dev": few})
                *_, epoch = fit(model, task, recipe, 0, embed)
            return 1000 * self.size / epoch.pairs_per_second

        return run

    def loop(self, step, parameters, fused, bf16=False):
        """Return a round of a peer, in ms per step. step: computes the loss; fused=None: the default
        AdamW.
        """
        parameters = list(parameters)
        optimizer = torch.optim.AdamW(parameters, lr=2e-5, fused=fused)

        def run():
            wait(self.device)
            start = time.perf_counter()
            for first in range(0, len(self.scores), self.size):
                part = slice(first, first + self.size)
                target = torch.tensor(self.scores[part], device=self.device) / 5
                with torch.autocast(self.device, torch.bfloat16, enabled=bf16):
                    loss = step(self.texts[0][part], self.texts[1][part], target)
                optimizer.zero_grad()
                loss.backward()
                torch.nn.utils.clip_grad_norm_(parameters, 1.0)
                optimizer.step()
            wait(self.device)
            return 1000 * (time.perf_counter() - start) / (len(self.scores) / self.size)

        return run


def wait(device: str | torch.device) -> None:
    """Wait until a GPU has finished its work; on a CPU there is nothing to wait for."""
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)


def rate(run: Callable[[], object], count: int, device: str | torch.device = "cpu") -> Callable[[], float]:
    """Return a round of `run`, in sentences per second. count: sentences in the round."""

    def timed() -> float:
        wait(device)
        start = time.perf_counter()
        run()
        wait(device)
        return count / (time.perf_counter() - start)

    return timed


def truncated(work: Work, ckpt, layer: int, fused=None, bf16=False):
    """The first l layers, u and v in one padded batch: the code of a careful user of transformers."""
    transformers = quiet_transformers()
    tokenizer = transformers.AutoTokenizer.from_pretrained(ckpt)
    class_name = json.loads((Path(ckpt) / "config.json").read_text())["architectures"][0]
    model_class = getattr(transformers, class_name)
    model = (
        model_class.from_pretrained(ckpt, num_hidden_layers=layer, **no_pooler(ckpt)).to(work.device).train()
    )

    def step(first, second, target):
        batch = tokenizer(first + second, padding=True, truncation=True, return_tensors="pt").to(work.device)
        batch.pop("token_type_ids", None)  # 0 by default, and unknown to some families
        mask = batch["attention_mask"][:, :, None].float()
        u, v = ((model(**batch).last_hidden_state.float() * mask).sum(1) / mask.sum(1)).chunk(2)
        return torch.nn.functional.mse_loss(torch.cosine_similarity(u, v), target)

    return work.loop(step, model.parameters(), fused, bf16)


def sentence_transformers_loss(work: Work, ckpt, layer: int, bf16=False):
    """CosineSimilarityLoss of sentence-transformers, first l layers, in a plain loop with fused AdamW."""
    from sentence_transformers.losses import CosineSimilarityLoss
    from sentence_transformers.util import batch_to_device

    model = truncated_sentence_transformer(ckpt, layer, work.device).train()
    objective = CosineSimilarityLoss(model)

    def step(*sides_and_target):
        *sides, target = sides_and_target
        return objective([batch_to_device(model.tokenize(side), work.device) for side in sides], target)

    return work.loop(step, model.parameters(), fused=True, bf16=bf16)


def sentence_transformers_trainer(work: Work, ckpt, layer: int, bf16=False):
    """Time the second of two epochs of SentenceTransformerTrainer on the pairs of a round.

    It has its default arguments (fused AdamW), and the model its first layers.
    """
    from accelerate.state import AcceleratorState
    from datasets import Dataset
    from sentence_transformers import SentenceTransformerTrainer, SentenceTransformerTrainingArguments
    from sentence_transformers.losses import CosineSimilarityLoss
    from transformers import TrainerCallback

    model = truncated_sentence_transformer(ckpt, layer, work.device)
    loss, targets = CosineSimilarityLoss(model), [score / 5 for score in work.scores]
    data = Dataset.from_dict({"sentence1": work.texts[0], "sentence2": work.texts[1], "score": targets})
    settings = {"num_train_epochs": 2, "per_device_train_batch_size": work.size, "learning_rate": 2e-5}
    settings |= {"bf16": bf16, "use_cpu": model.device.type == "cpu"}
    settings |= {"report_to": "none", "disable_tqdm": True}
    settings |= {"save_strategy": "no", "logging_strategy": "no"}

    class Clock(TrainerCallback):
        def on_epoch_begin(self, *_, **__):  # the last epoch counts
            wait(model.device)
            self.start = time.perf_counter()

        def on_train_end(self, *_, **__):
            wait(model.device)
            self.seconds = time.perf_counter() - self.start

    def run():
        AcceleratorState._reset_state(
            reset_partial_state=True
        )  # else the precision of the first round is used
        arguments = SentenceTransformerTrainingArguments(tempfile.mkdtemp(), **settings)
        clock = Clock()
        SentenceTransformerTrainer(model, arguments, train_dataset=data, loss=loss, callbacks=[clock]).train()
        return 1000 * clock.seconds / (len(data) / work.size)

    return run


def quiet_transformers():
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    return transformers


def no_pooler(ckpt) -> dict:
    """Return the argument that creates a model without its pooler, which is not used, if it has one."""
    config = json.loads((Path(ckpt) / "config.json").read_text())
    return {"add_pooling_layer": False} if "pooler" in FAMILIES[config["model_type"]].components else {}


def truncated_sentence_transformer(ckpt, layer: int, device: str = "cpu"):
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(ckpt), device=device)
    encoder = getattr(model[0].auto_model, "encoder", model[0].auto_model)
    name = next(name for name in ("block", "layer", "layers") if hasattr(encoder, name))
    setattr(encoder, name, getattr(encoder, name)[:layer])
    return model


def bench_train(args) -> None:
    work, ckpt, layer = Work.read(args), args.ckpt, args.layer
    peers = {
        "transformers, fused": truncated(work, ckpt, layer, fused=True),
        "transformers, fused, bf16": truncated(work, ckpt, layer, fused=True, bf16=True),
        "sentence-transformers' loss": sentence_transformers_loss(work, ckpt, layer),
        "sentence-transformers' loss, bf16": sentence_transformers_loss(work, ckpt, layer, bf16=True),
    }
    step_table(args, work, ckpt, layer, peers, "all-MiniLM-L6-v2" if args.default_ckpt else ckpt.name)


def bench_family(args, name: str) -> None:
    """Time a step with the architecture `name` of BASE_WIDTH, and with other libraries."""
    work, layer = Work.read(args), args.layer
    ckpt = random_checkpoint(BASE_WIDTH[name], layer, args.ckpt)
    peers = {
        "transformers, fused": truncated(work, ckpt, layer, fused=True),
        "transformers, fused, bf16": truncated(work, ckpt, layer, fused=True, bf16=True),
    }
    if find_spec("datasets") and find_spec("accelerate"):
        peers["SentenceTransformerTrainer"] = sentence_transformers_trainer(work, ckpt, layer)
        peers["SentenceTransformerTrainer, bf16"] = sentence_transformers_trainer(
            work, ckpt, layer, bf16=True
        )
    step_table(args, work, ckpt, layer, peers, f"architecture of {name}, random weights")


def random_checkpoint(config: dict, layer: int, tokenizer_of) -> Path:
    """Save a model of `layer` layers with random weights and the tokenizer of another folder."""
    encoder = random_encoder(config_from_dict(config | {"num_hidden_layers": layer, "num_layers": layer}))
    folder = Path(tempfile.mkdtemp())
    SentenceEncoder(encoder, load_tokenizer(Path(tokenizer_of))).save_pretrained(folder)
    return folder


def step_table(args, work: Work, ckpt, layer: int, peers: dict, title: str) -> None:
    """Print a table of training steps."""
    peers |= {f"tmft {precision}": work.tmft(ckpt, layer, precision) for precision in ("fp32", "bf16")}
    print(f"\ntraining step of 32 pairs, {title}, l = {layer}, {len(work.scores)} pairs a round")
    measure(peers, args.rounds, "ms", "tmft fp32", "tmft bf16")


def library_attention(self, hidden, mask):
    """Compute SelfAttention.forward with F.scaled_dot_product_attention."""
    q, k, v = (
        project(hidden).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
        for project in (self.query, self.key, self.value)
    )
    probability = self.dropout.p if self.training else 0.0
    mask = mask.to(q.dtype)
    context = torch.nn.functional.scaled_dot_product_attention(q, k, v, mask, probability)
    return self.output(context.transpose(1, 2).flatten(2))


def bench_techniques(args) -> None:
    """Time tmft's step with one technique switched off at a time."""
    work = Work.read(args)

    def every_word(embeddings, *_):
        return OccurringWords(embeddings, [list(range(embeddings.word.num_embeddings))])

    def one_sentence_per_row(sentences, *_, **__):
        T = max(map(len, sentences))
        ids, numbers, positions = (torch.zeros(len(sentences), T, dtype=torch.long) for _ in range(3))
        for s, sentence in enumerate(sentences):
            ids[s, : len(sentence)] = torch.tensor(sentence)
            numbers[s, : len(sentence)] = s + 1
            positions[s, : len(sentence)] = torch.arange(len(sentence))
        return PackedBatch(ids, numbers, positions, len(sentences))

    adamw = torch.optim.AdamW
    without = {
        "packing (one padded sentence per row)": patch("tmft.training_task.pack", one_sentence_per_row),
        "written-out attention (SDPA)": patch("tmft.bert.SelfAttention.forward", library_attention),
        "fused AdamW (torch's default)": patch(
            "torch.optim.AdamW", lambda *args, fused, **keys: adamw(*args, **keys)
        ),
        "words that occur (all words)": patch("tmft.optimizers.OccurringWords", every_word),
        "cheap dropout (torch's)": patch("tmft.speed.operators.Dropout.forward", torch.nn.Dropout.forward),
        "oneDNN (MKL)": patch("tmft.speed.matmul.onednn_is_exact", lambda: False),
    }
    for precision in ("fp32", "bf16"):
        print(f"\ntraining step of 32 pairs, l = {args.layer}, {precision}; one technique at a time is off")
        peers = {"tmft": work.tmft(args.ckpt, args.layer, precision)}
        for name, change in without.items():
            peers[f"without {name}"] = work.tmft(args.ckpt, args.layer, precision, change)
        measure(peers, args.rounds, "ms", "tmft")
