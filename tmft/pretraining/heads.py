"""What stands on an encoder while it is pre-trained: the heads, their names in files, and the two objectives.

Letters in this file: B rows, T tokens in a row, D hidden_size, E embedding_size, V vocab_size, M masked
tokens.

An objective takes a Batch and returns sums over its tokens, by name: losses (with gradient) and counts. Sums
add up over batches and processes, and `figures` turns them into means.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tmft.checkpoints.save import save_encoder
from tmft.checkpoints.weights import WeightFiles
from tmft.errors import InputError
from tmft.models.bert import ACTIVATIONS, BaseEncoder, EncoderConfig, init_weights
from tmft.models.registry import FAMILIES, modern, random_encoder
from tmft.pretraining.masking import Batch


class MaskedLMHead(nn.Module):
    """Hidden states -> a score for every word: a transformation, then the product with the word embeddings.

    Source: the released code of BERT; Press and Wolf 2017, arXiv:1608.05859, for the tied table.
    """

    def __init__(self, config: EncoderConfig):
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.embedding_size)
        self.activation = ACTIVATIONS[FAMILIES[config.model_type].mlm_act or config.hidden_act]
        self.norm = nn.LayerNorm(config.embedding_size, eps=config.layer_norm_eps)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))
        init_weights(self.dense, config.initializer_range)

    def forward(self, hidden: Tensor, words: Tensor) -> Tensor:
        """hidden: (M, D); words: (V, E), the embeddings -> logits (M, V)"""
        return F.linear(self.norm(self.activation(self.dense(hidden))), words, self.bias)


class ReplacedTokenHead(nn.Module):
    """Hidden states -> for every token the logit of "this one was replaced"."""

    REPLACED = 0.13  # of the tokens, at first: a generator that knows little yet fills in 15 %

    def __init__(self, config: EncoderConfig):
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.activation = ACTIVATIONS[config.hidden_act]
        self.classify = nn.Linear(config.hidden_size, 1)
        for linear in (self.dense, self.classify):
            init_weights(linear, config.initializer_range)
        # Most tokens are original. Were this left to learn, every token would push every layer the same way
        # at first, and a deep, narrow encoder may end up with one hidden state for all tokens (docs/LOG.md).
        nn.init.constant_(self.classify.bias, math.log(self.REPLACED / (1 - self.REPLACED)))

    def forward(self, hidden: Tensor) -> Tensor:
        """(..., D) -> (...)"""
        return self.classify(self.activation(self.dense(hidden))).squeeze(-1)


class MaskedLM(nn.Module):
    """Masked language modelling: cross-entropy of the masked tokens; logits are computed for them alone."""

    def __init__(self, encoder: BaseEncoder, head: MaskedLMHead | None = None, layout: int = 0):
        """layout: number of the form of the family in which the head is saved."""
        super().__init__()
        if not FAMILIES[encoder.config.model_type].mlm_head_layouts:
            known = ", ".join(name for name, family in FAMILIES.items() if family.mlm_head_layouts)
            what = f"masked language modelling: a {encoder.config.model_type} has no head for it"
            raise InputError(f"{what}; take one of {known}, or task span for a T5", "task")
        self.encoder, self.head = encoder, head or MaskedLMHead(encoder.config)
        self.layout = layout

    def logits(self, batch: Batch) -> Tensor:
        """(M, V), of the masked tokens"""
        hidden = self.encoder(*batch.rows.inputs)  # (B, T, D)
        masked = hidden.flatten(0, 1)[batch.places]  # (M, D)
        return self.head(masked, self.encoder.embeddings.word.weight)

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        return masked_sums(self.logits(batch), batch.labels)

    @staticmethod
    def loss(sums: dict[str, Tensor], masked: int, tokens: int) -> Tensor:
        """The part of the step's loss that a batch contributes; masked, tokens: counts of the whole step."""
        return sums["mlm"] / masked

    def save(self, folder: Path, dtype: torch.dtype = torch.float32) -> None:
        family = FAMILIES[self.encoder.config.model_type]
        head = named(self.head, family.mlm_head_layouts[self.layout])
        save_encoder(self.encoder, folder, head, family.mlm_class, family.mlm_keys[self.layout], dtype)


class ReplacedTokenDetection(nn.Module):
    """ELECTRA's pre-training: a small generator fills in masked tokens, the discriminator says where it did.

    The two share the embeddings (word, position, token type and their LayerNorm). No gradient passes from the
    discriminator through the sampled words. loss = MLM of the generator + 50 * RTD of the discriminator over
    all tokens. Source: Clark et al. 2020, arXiv:2003.10555, sections 2 and 3.2; their released code.
    """

    RTD_WEIGHT = 50.0

    def __init__(
        self,
        config: EncoderConfig,
        generator_size: float,
        encoder: BaseEncoder | None = None,
        head: ReplacedTokenHead | None = None,
    ):
        """generator_size: its width, heads, feed-forward as a share of the discriminator's; it is as deep.
        encoder, head: what the discriminator starts from, None: random weights, as the generator's are."""
        super().__init__()
        self.layout = FAMILIES[config.model_type].rtd_layout
        if self.layout is None:
            known = ", ".join(name for name, family in FAMILIES.items() if family.rtd_layout)
            what = f"replaced-token detection: the shape is a {config.model_type}"
            raise InputError(f"{what}; name the config.json of an {known}")
        self.generator = MaskedLM(random_encoder(generator_config(config, generator_size)))
        self.encoder = random_encoder(config) if encoder is None else encoder
        self.head = head or ReplacedTokenHead(config)
        for name in ("word", "position", "token_type", "norm"):
            setattr(self.generator.encoder.embeddings, name, getattr(self.encoder.embeddings, name))

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        rows = batch.rows
        logits = self.generator.logits(batch)  # (M, V)
        sampled = sample(logits.detach())  # (M,)
        flat = rows.input_ids.flatten()
        corrupted = flat.index_copy(0, batch.places, sampled).view_as(rows.input_ids)
        wrong = (sampled != batch.labels).float()  # a sampled word that is the true one counts as original
        replaced = torch.zeros_like(flat, dtype=torch.float32).index_copy(0, batch.places, wrong)
        replaced = replaced.view_as(corrupted)  # (B, T)

        hidden = self.encoder(corrupted, rows.sentence_ids, rows.position_ids)  # (B, T, D)
        real = rows.sentence_ids != 0
        scores = self.head(hidden).float()  # (B, T)
        each = F.binary_cross_entropy_with_logits(scores, replaced, reduction="none")
        return masked_sums(logits, batch.labels) | {
            "rtd": (each * real).sum(),
            "right": (((scores > 0) == (replaced > 0)) & real).sum(),
            "original": ((replaced == 0) & real).sum(),
            "tokens": real.sum(),
        }

    @classmethod
    def loss(cls, sums: dict[str, Tensor], masked: int, tokens: int) -> Tensor:
        return sums["mlm"] / masked + cls.RTD_WEIGHT * sums["rtd"] / tokens

    def save(self, folder: Path, dtype: torch.dtype = torch.float32) -> None:
        """Two checkpoints: folder/discriminator and folder/generator."""
        head = named(self.head, self.layout)
        save_encoder(self.encoder, folder / "discriminator", head, "ElectraForPreTraining", dtype=dtype)
        self.generator.save(folder / "generator", dtype)


def masked_sums(logits: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """logits: (M, V); labels: (M,) -> sums over the masked tokens, the loss in float32."""
    return {
        "mlm": F.cross_entropy(logits.float(), labels, reduction="sum"),
        "correct": (logits.argmax(-1) == labels).sum(),
        "masked": labels.new_full((), len(labels)),
    }


def sample(logits: Tensor) -> Tensor:
    """(M, V) -> a word each (M,), with probability softmax(logits): the argmax after adding Gumbel noise."""
    noise = torch.empty_like(logits, dtype=torch.float32).exponential_().clamp_(min=1e-8).log()
    return (logits.float() - noise).argmax(-1)  # minus the noise is a Gumbel variable


def guessed(figures: Iterable[str]) -> str:
    """What masked tokens are guessed by, of the names of sums or means: "mlm", or "span" for a decoder."""
    return "span" if any(name.startswith("span") for name in figures) else "mlm"


def figures(sums: dict[str, float]) -> dict[str, float]:
    """Sums over tokens -> means. rtd_baseline: the accuracy of always saying "original"."""
    name, masked = guessed(sums), max(1, sums["masked"])
    means = {f"{name}_loss": sums[name] / masked, f"{name}_accuracy": sums["correct"] / masked}
    if "rtd" in sums:
        means["rtd_loss"] = sums["rtd"] / sums["tokens"]
        means["rtd_accuracy"] = sums["right"] / sums["tokens"]
        means["rtd_baseline"] = sums["original"] / sums["tokens"]
    return means


def generator_config(config: EncoderConfig, size: float) -> EncoderConfig:
    """The shape of a discriminator's generator: as deep, `size` times as wide, heads of the same width."""
    heads = max(1, round(config.num_attention_heads * size))
    width = config.hidden_size // config.num_attention_heads
    return replace(
        config,
        num_attention_heads=heads,
        hidden_size=heads * width,
        intermediate_size=max(1, round(config.intermediate_size * size)),
    )


def read_mlm_head(folder: Path, config: EncoderConfig) -> tuple[MaskedLMHead, int] | None:
    """The MLM head in the files of a checkpoint, and the number of its layout; None if there is none."""
    return read_head(folder, FAMILIES[config.model_type].mlm_head_layouts, lambda: MaskedLMHead(config))


def read_rtd_head(folder: Path, config: EncoderConfig) -> ReplacedTokenHead | None:
    """The head of a discriminator in the files of a checkpoint; None if there is none."""
    layouts = filter(None, [FAMILIES[config.model_type].rtd_layout])
    found = read_head(folder, layouts, lambda: ReplacedTokenHead(config))
    return found and found[0]


def read_head(
    folder: Path, layouts: Iterable[dict[str, str]], make: Callable[[], nn.Module]
) -> tuple[nn.Module, int] | None:
    """A head by the first of the layouts of which the files have a name, and the number of that; or None.

    make: a head whose weights are then those of the files. Raises InputError if a part of it is missing or
    has another shape than config.json says.
    """
    files = WeightFiles(folder)
    in_file = {modern(name): name for name in files.names}
    for number, layout in enumerate(layouts):
        found = [name for name in layout if name in in_file]
        if not found:
            continue
        if missing := [name for name in layout if name not in in_file]:
            raise InputError(f"missing tensor {missing[0]} ({files.path}): the head is incomplete")
        read = files.read([in_file[name] for name in found])
        head = make()
        for name, weight in head.state_dict().items():
            theirs = next(theirs for theirs, ours in layout.items() if ours == name)
            tensor = read[in_file[theirs]]
            if tensor.shape != weight.shape:
                shapes = f"{tuple(tensor.shape)} ({files.path}): config.json asks for {tuple(weight.shape)}"
                raise InputError(f"{theirs} has shape {shapes}")
            weight.copy_(tensor)
        return head, number
    return None


def named(head: nn.Module, layout: dict[str, str]) -> dict[str, Tensor]:
    """The weights of a head under their names in a checkpoint."""
    weights = head.state_dict()
    return {theirs: weights[ours] for theirs, ours in layout.items()}
