"""Pre-training objectives with their heads: masked language modeling and replaced-token detection.

An objective is a module that holds the model. It takes a LabeledBatch and returns a dict of sums over its
tokens, as scalar tensors:

    mlm             sum of the cross-entropies of the masked tokens, predicted by a BERT or a generator
    correct         number of masked tokens that are predicted correctly
    masked          number of masked tokens
    rtd             sum of the binary cross-entropies of the discriminator, over all tokens
    rtd_correct     number of tokens that the discriminator classifies correctly
    original        number of tokens that are not replaced
    tokens          number of all tokens

The two losses, mlm and rtd, have a gradient. Sums of several batches and processes can be added up;
`means_from_sums` computes the means that are logged. Heads are saved under the names of transformers.

Letters in this file: B rows, T tokens in a row, D hidden_size, E embedding_size, V vocab_size, M masked
tokens.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tmft.checkpoints.model_folder import ModelFolder
from tmft.checkpoints.save import save_encoder
from tmft.encoder import ACTIVATIONS, BaseEncoder, EncoderConfig, init_weights
from tmft.errors import InputError
from tmft.models.families import FAMILIES, random_encoder, rename_legacy_weight
from tmft.pretraining.masking import IGNORED_LABEL, LabeledBatch

Head = TypeVar("Head", bound=nn.Module)


class MaskedLMHead(nn.Module):
    """Predicts tokens: linear layer, activation and LayerNorm, then the product with the word embeddings.

    Some families have no bias in some of the three parts: mlm_head_options of the family says it.
    Source: the released code of BERT; Press and Wolf 2017, arXiv:1608.05859, for the tied embeddings.
    """

    dense: nn.Linear
    activation: Callable[[Tensor], Tensor]
    norm: nn.LayerNorm
    bias: nn.Parameter | None

    def __init__(self, config: EncoderConfig):
        super().__init__()
        D, E, family = config.hidden_size, config.embedding_size, FAMILIES[config.model_type]
        options: dict[str, Any] = {"activation": family.mlm_activation or config.hidden_act}
        options |= dict.fromkeys(("dense_bias", "norm_bias", "output_bias"), True)
        options |= family.mlm_head_options(config)
        self.dense = nn.Linear(D, E, bias=options["dense_bias"])
        self.activation = ACTIVATIONS[options["activation"]]
        self.norm = nn.LayerNorm(E, eps=config.layer_norm_eps, bias=options["norm_bias"])
        self.bias = nn.Parameter(torch.zeros(config.vocab_size)) if options["output_bias"] else None
        init_weights(self.dense, config.initializer_range)

    def forward(self, hidden: Tensor, word_embeddings: Tensor) -> Tensor:
        """Return the logits of all tokens, (M, V). hidden: (M, D); word_embeddings: (V, E)."""
        return F.linear(self.norm(self.activation(self.dense(hidden))), word_embeddings, self.bias)


class ReplacedTokenHead(nn.Module):
    """The discriminator's head of ELECTRA: predicts for every token whether it was replaced."""

    dense: nn.Linear
    activation: Callable[[Tensor], Tensor]
    classifier: nn.Linear

    # Fraction of the tokens that are replaced at first: 15 % are filled in, but some of these correctly.
    INITIAL_REPLACED_RATE = 0.13

    def __init__(self, config: EncoderConfig):
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.activation = ACTIVATIONS[config.hidden_act]
        self.classifier = nn.Linear(config.hidden_size, 1)
        for linear in (self.dense, self.classifier):
            init_weights(linear, config.initializer_range)
        # Most tokens are original. If the head had to learn this, every token would push every layer in the
        # same direction at first, and a deep, narrow encoder may collapse to one hidden state for all
        # tokens. So the bias starts at the log-odds of the replaced tokens.
        rate = self.INITIAL_REPLACED_RATE
        nn.init.constant_(self.classifier.bias, math.log(rate / (1 - rate)))

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the logit that a token was replaced, (...). hidden: (..., D)."""
        return self.classifier(self.activation(self.dense(hidden))).squeeze(-1)


class MaskedLM(nn.Module):
    """Masked language modeling with an encoder and a head. Logits are computed for the masked tokens only.

    The loss is the mean of the cross-entropies of the masked tokens.
    """

    encoder: BaseEncoder
    head: MaskedLMHead

    def __init__(self, encoder: BaseEncoder, head: MaskedLMHead | None = None, head_layout: int = 0):
        """Put the encoder and the head together.

        head: None makes a new one. head_layout: index of the entry of the family's mlm_head_layouts whose
        names the head gets when it is saved. Raises InputError if the family has no head for MLM.
        """
        super().__init__()
        if not FAMILIES[encoder.config.model_type].mlm_head_layouts:
            supported = ", ".join(name for name, family in FAMILIES.items() if family.mlm_head_layouts)
            raise InputError(
                f"a {encoder.config.model_type} has no head for masked language modeling: "
                f"choose one of {supported}",
                "task",
            )
        self.encoder, self.head = encoder, head or MaskedLMHead(encoder.config)
        self.head_layout = head_layout

    def logits(self, batch: LabeledBatch) -> Tensor:
        """Return the logits of the masked tokens, (M, V)."""
        hidden = self.encoder(*batch.packed.inputs)  # (B, T, D)
        masked = hidden.flatten(0, 1)[batch.label_positions]  # (M, D)
        return self.head(masked, self.encoder.embeddings.word.weight)

    def forward(self, batch: LabeledBatch) -> dict[str, Tensor]:
        """Return the sums of a batch, see `prediction_sums`."""
        batch = batch.with_padded_labels()
        return prediction_sums(self.logits(batch), batch.labels)

    @classmethod
    def loss(cls, sums: dict[str, Tensor], num_labels: int, num_tokens: int) -> Tensor:
        """Return the part of a batch in the loss of a step, a scalar.

        sums: as returned by `forward`. num_labels, num_tokens: number of labels and of all tokens of the
        whole step, which may consist of several batches on several processes.
        """
        return sums["mlm"] / num_labels

    def save(self, folder: Path, dtype: torch.dtype = torch.float32) -> None:
        """Write config.json and the weights of encoder and head, with the names of transformers.

        dtype: that of the weights in the file.
        """
        family = FAMILIES[self.encoder.config.model_type]
        head = head_state_dict(self.head, family.mlm_head_layouts[self.head_layout])
        config_keys = family.mlm_config_keys[self.head_layout]
        save_encoder(self.encoder, folder, head, family.mlm_class, config_keys, dtype)


class ReplacedTokenDetection(nn.Module):
    """ELECTRA's pre-training: a small generator fills in masked tokens, a discriminator detects them.

    The two share the embeddings (word, position, token type and their LayerNorm). No gradient flows from the
    discriminator through the sampled tokens. The loss is the MLM loss of the generator plus 50 times the RTD
    loss of the discriminator, which is a mean over all tokens. Source: Clark et al. 2020, arXiv:2003.10555,
    sections 2 and 3.2; their released code.
    """

    generator: MaskedLM
    encoder: BaseEncoder
    head: ReplacedTokenHead

    RTD_WEIGHT = 50.0

    def __init__(
        self,
        config: EncoderConfig,
        generator_size: float,
        encoder: BaseEncoder | None = None,
        head: ReplacedTokenHead | None = None,
    ):
        """Make the discriminator, and a generator with random weights.

        config: configuration of the discriminator. encoder, head: its modules; None: new ones with random
        weights. generator_size: hidden size, number of heads and feed-forward size of the generator, as a
        fraction of the discriminator's; it has the same number of layers. Raises InputError if the family has
        no head for replaced-token detection.
        """
        super().__init__()
        head_layout = FAMILIES[config.model_type].rtd_head_layout
        if head_layout is None:
            supported = ", ".join(name for name, family in FAMILIES.items() if family.rtd_head_layout)
            raise InputError(
                f"a {config.model_type} has no head for replaced-token detection: "
                f"name the config.json of an {supported}"
            )
        self.head_layout = head_layout
        self.generator = MaskedLM(random_encoder(generator_config(config, generator_size)))
        self.encoder = random_encoder(config) if encoder is None else encoder
        self.head = head or ReplacedTokenHead(config)
        for name in ("word", "position", "token_type", "norm"):
            setattr(self.generator.encoder.embeddings, name, getattr(self.encoder.embeddings, name))

    def forward(self, batch: LabeledBatch) -> dict[str, Tensor]:
        """Return the sums over the tokens of a batch, all that are listed at the top of this file."""
        packed = batch.packed
        logits = self.generator.logits(batch)  # (M, V)
        sampled = sample_tokens(logits.detach())  # (M,)
        flat_ids = packed.input_ids.flatten()
        corrupted = flat_ids.index_copy(0, batch.label_positions, sampled).view_as(packed.input_ids)
        is_wrong = (sampled != batch.labels).float()  # if it is the true token, it counts as original
        is_replaced = torch.zeros_like(flat_ids, dtype=torch.float32)
        is_replaced = is_replaced.index_copy(0, batch.label_positions, is_wrong).view_as(corrupted)  # (B, T)

        hidden = self.encoder(corrupted, packed.attention_mask, packed.position_ids)  # (B, T, D)
        is_token = packed.attention_mask != 0  # (B, T)
        scores = self.head(hidden).float()  # (B, T)
        losses = F.binary_cross_entropy_with_logits(scores, is_replaced, reduction="none")
        return prediction_sums(logits, batch.labels) | {
            "rtd": (losses * is_token).sum(),
            "rtd_correct": (((scores > 0) == (is_replaced > 0)) & is_token).sum(),
            "original": ((is_replaced == 0) & is_token).sum(),
            "tokens": is_token.sum(),
        }

    @classmethod
    def loss(cls, sums: dict[str, Tensor], num_labels: int, num_tokens: int) -> Tensor:
        """Return the part of a batch in the loss of a step, a scalar.

        sums, num_labels, num_tokens: see MaskedLM.loss.
        """
        return sums["mlm"] / num_labels + cls.RTD_WEIGHT * sums["rtd"] / num_tokens

    def save(self, folder: Path, dtype: torch.dtype = torch.float32) -> None:
        """Write two checkpoints, into the subfolders discriminator and generator of a folder.

        dtype: that of the weights in the files.
        """
        head = head_state_dict(self.head, self.head_layout)
        save_encoder(self.encoder, folder / "discriminator", head, "ElectraForPreTraining", dtype=dtype)
        self.generator.save(folder / "generator", dtype)


def prediction_sums(logits: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """Return the sums over the masked tokens, as scalars: the first three at the top of this file.

    The cross-entropies are computed in float32. logits: (M, V). labels: (M,) int64, the tokens to predict, or
    IGNORED_LABEL.
    """
    return {
        "mlm": F.cross_entropy(logits.float(), labels, reduction="sum"),
        "correct": (logits.argmax(-1) == labels).sum(),
        "masked": (labels != IGNORED_LABEL).sum(),
    }


def sample_tokens(logits: Tensor) -> Tensor:
    """Draw a token for each position with the probabilities softmax(logits); return their ids, (M,).

    logits: (M, V). The token with the highest sum of logit and Gumbel noise has this distribution.
    """
    log_exponential = torch.empty_like(logits, dtype=torch.float32).exponential_().clamp_(min=1e-8).log()
    return (logits.float() - log_exponential).argmax(-1)  # - log_exponential has a Gumbel distribution


def means_from_sums(sums: dict[str, float]) -> dict[str, float]:
    """Return the means over tokens that are logged, computed from the sums of an objective.

    The keys are mlm_loss and mlm_accuracy, over the masked tokens; and for replaced-token detection rtd_loss,
    rtd_accuracy and rtd_baseline, over all tokens. rtd_baseline is the accuracy of always predicting
    "original".
    """
    num_labels = max(1, sums["masked"])
    means = {"mlm_loss": sums["mlm"] / num_labels, "mlm_accuracy": sums["correct"] / num_labels}
    if "rtd" in sums:
        means["rtd_loss"] = sums["rtd"] / sums["tokens"]
        means["rtd_accuracy"] = sums["rtd_correct"] / sums["tokens"]
        means["rtd_baseline"] = sums["original"] / sums["tokens"]
    return means


def generator_config(config: EncoderConfig, size: float) -> EncoderConfig:
    """Return the configuration of a generator: as many layers, `size` times as wide, heads as wide."""
    num_heads = max(1, round(config.num_attention_heads * size))
    head_size = config.hidden_size // config.num_attention_heads
    return replace(
        config,
        num_attention_heads=num_heads,
        hidden_size=num_heads * head_size,
        intermediate_size=max(1, round(config.intermediate_size * size)),
    )


def read_mlm_head(folder: ModelFolder, config: EncoderConfig) -> tuple[MaskedLMHead, int] | None:
    """Return the MLM head of a checkpoint and the index of its layout; None if it has no MLM head."""
    return read_head(folder, FAMILIES[config.model_type].mlm_head_layouts, lambda: MaskedLMHead(config))


def read_rtd_head(folder: ModelFolder, config: EncoderConfig) -> ReplacedTokenHead | None:
    """Return the head for replaced-token detection of a checkpoint; None if it has no such head."""
    layouts = filter(None, [FAMILIES[config.model_type].rtd_head_layout])
    head_and_layout = read_head(folder, layouts, lambda: ReplacedTokenHead(config))
    return head_and_layout and head_and_layout[0]


def read_head(
    folder: ModelFolder, layouts: Iterable[dict[str, str]], make_head: Callable[[], Head]
) -> tuple[Head, int] | None:
    """Return the head of a checkpoint and the index of its layout; None if no layout fits.

    layouts: {name of a weight in the checkpoint: its name in the head} for each way in which a head may be
    saved; the first layout is used of which the checkpoint has any name. make_head: makes a new head, into
    which the weights are copied. Raises InputError if a weight is missing, or has another shape than
    config.json says.
    """
    files = folder.weights
    name_in_file = {rename_legacy_weight(name): name for name in files.names}
    for layout_index, layout in enumerate(layouts):
        present = [name for name in layout if name in name_in_file]
        if not present:
            continue
        head = make_head()
        weights = head.state_dict()
        if missing := [name for name in layout if layout[name] in weights and name not in name_in_file]:
            raise InputError(f"missing tensor {missing[0]} ({files.path}): the head is incomplete")
        if unknown := [name for name in present if layout[name] not in weights]:
            raise InputError(f"unknown tensor {unknown[0]} ({files.path}): config.json does not ask for it")
        tensors = files.read_tensors([name_in_file[name] for name in present])
        checkpoint_names = {ours: theirs for theirs, ours in layout.items()}
        for name, weight in weights.items():
            checkpoint_name = checkpoint_names[name]
            tensor = tensors[name_in_file[checkpoint_name]]
            if tensor.shape != weight.shape:
                raise InputError(
                    f"{checkpoint_name} has shape {tuple(tensor.shape)} ({files.path}): "
                    f"config.json asks for {tuple(weight.shape)}"
                )
            weight.copy_(tensor)
        return head, layout_index
    return None


def head_state_dict(head: nn.Module, layout: dict[str, str]) -> dict[str, Tensor]:
    """Return {name in the checkpoint: weight} of a head. layout: one of the layouts of `read_head`."""
    weights = head.state_dict()
    return {theirs: weights[ours] for theirs, ours in layout.items() if ours in weights}
