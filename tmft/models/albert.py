"""ALBERT: BERT's encoder in which all layers, or groups of consecutive ones, share their weights.

A truncated ALBERT applies its shared layer fewer times: this saves time, but hardly any memory.

Letters in this file: B rows of a batch, T tokens in a row, D hidden_size, E embedding_size, L layers,
G groups of layers. What attention_mask and position_ids contain is explained at the top of
tmft/encoder.py.
Source: Lan et al. 2019, arXiv:1909.11942.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from torch import Tensor, nn

from tmft.bert import Embeddings, Layer
from tmft.encoder import (
    BaseEncoder,
    EncoderConfig,
    default_position_ids,
    init_weights,
    make_attention_bias,
)
from tmft.errors import InputError
from tmft.models.bert_families import BERT_SUPPORTED
from tmft.models.family import Family


@dataclass(frozen=True)
class AlbertConfig(EncoderConfig):
    """The configuration of an ALBERT, with the defaults of transformers."""

    embedding_size: int = field(default=128, kw_only=True)  # whatever hidden_size is, as in transformers
    hidden_act: str = "gelu_new"
    hidden_dropout_prob: float = 0.0
    attention_probs_dropout_prob: float = 0.0
    num_hidden_groups: int = 1
    inner_group_num: int = 1

    @property
    def module_counts(self) -> dict[str, int]:
        """How many modules a name with {n} or {g} stands for."""
        return super().module_counts | {"g": self.num_hidden_groups}

    def check(self) -> None:
        """Raise InputError if there are more groups than layers, or if a group is more than one layer."""
        super().check()
        L, G = self.num_hidden_layers, self.num_hidden_groups
        if not min(1, L) <= G <= L:
            raise InputError(
                f"num_hidden_groups {G} (config.json): expected {min(1, L)} to {L}, the number of layers"
            )
        if self.inner_group_num != 1:
            raise InputError(
                f"inner_group_num {self.inner_group_num} (config.json): only 1 is supported, because a layer "
                "of a group of several has no hidden state of its own"
            )


def group_numbers(L: int, G: int) -> list[int]:
    """Return the number, from 0, of the group of each of L layers if there are G groups.

    The division is in floating point, as in transformers: 6 layers in 4 groups have the numbers 0 0 1 2 2 3.
    """
    return [int(n / (L / G)) for n in range(L)]


def fewest_groups(layer_groups: Sequence[int]) -> list[int]:
    """Return the groups to save, as few as possible: [the one that is stored as group 0, as group 1, ...].

    layer_groups: the group of each layer. config.json has only the number of groups, from which transformers
    computes the group of each layer (group_numbers). Layers to which it gives the same number must be of one
    group. If it gives different numbers to layers of one group, the weights of this group are stored several
    times: at worst, once for each layer.
    """
    L = len(layer_groups)
    for G in range(len(set(layer_groups)), L):
        stored: list[set[int]] = [set() for _ in range(G)]
        for number, group in zip(group_numbers(L, G), layer_groups, strict=True):
            stored[number].add(group)
        if all(len(groups) == 1 for groups in stored):
            return [groups.pop() for groups in stored]
    return list(layer_groups)


class AlbertLayer(Layer):
    """BERT's layer without dropout after the feed-forward, as in transformers."""

    def __init__(self, config: AlbertConfig):
        super().__init__(config)
        self.feed_forward_dropout = nn.Identity()


class AlbertEncoder(BaseEncoder):
    """A truncated ALBERT: the embeddings, a linear map from E to D, and the first `layer` layers.

    groups: the layers with weights of their own. layer_groups: the index in `groups` of each layer. The list
    `layers` has the layers in the order in which they run.
    """

    layer_groups: list[int]
    groups: nn.ModuleList
    config: AlbertConfig
    embeddings: Embeddings

    def __init__(self, config: AlbertConfig, layer: int | None = None):
        """layer: how many layers to keep, 0 to config.num_hidden_layers; None keeps all."""
        super().__init__()
        self.config = config
        self.embeddings = Embeddings(config)
        # other families have this map only if E differs from D
        self.embeddings.project = nn.Linear(config.embedding_size, config.hidden_size)
        L = config.resolve_num_layers(layer)
        self.layer_groups = group_numbers(config.num_hidden_layers, config.num_hidden_groups)[:L]
        self.groups = nn.ModuleList(AlbertLayer(config) for _ in set(self.layer_groups))
        self.apply(partial(init_weights, std=config.initializer_range))

    @property
    def layers(self) -> nn.ModuleList:  # type: ignore[override]  # keep_layers sets what it is computed from
        """The layers in the order in which they run; layers of a group are the same module."""
        return nn.ModuleList(self.groups[group] for group in self.layer_groups)

    def keep_layers(self, indices: Sequence[int]) -> None:
        """Remove all layers but these, in place. indices: from 0, in the order in which they will run."""
        kept = [self.layer_groups[index] for index in indices]
        used = sorted(set(kept))
        self.groups = nn.ModuleList(self.groups[group] for group in used)
        self.layer_groups = [used.index(group) for group in kept]
        before = self.kept_layers
        self.kept_layers = tuple(index if before is None else before[index] for index in indices)

    def saved_form(self) -> tuple[EncoderConfig, dict[str, Tensor]]:
        """Return the configuration and the state dict with which the encoder is saved, see fewest_groups."""
        stored = fewest_groups(self.layer_groups)
        state_dict = {
            name: weight for name, weight in self.state_dict().items() if not name.startswith("groups.")
        }
        for number, group in enumerate(stored):
            for name, weight in self.groups[group].state_dict().items():
                state_dict[f"groups.{number}.{name}"] = weight.clone()  # a file may not store a tensor twice
        L, G = len(self.layer_groups), len(stored)
        return replace(self.config, num_hidden_layers=L, num_hidden_groups=G), state_dict

    def iter_hidden_states(
        self, input_ids: Tensor, attention_mask: Tensor, position_ids: Tensor | None = None
    ) -> Iterator[Tensor]:
        """Yield hidden state 0, the embeddings after the linear map, then the output of each layer.

        Each is (B, T, D). The parameters are those of BaseEncoder.iter_hidden_states.
        """
        if position_ids is None:
            position_ids = default_position_ids(input_ids)
        hidden = self.embeddings(input_ids, position_ids)
        yield hidden
        mask = make_attention_bias(attention_mask, hidden.dtype)
        for layer in self.layers:
            hidden = layer(hidden, mask)
            yield hidden


# fmt: off
# Module in the checkpoint -> module here; {g} is the number of a group of layers, from 0.
WEIGHT_NAMES = {
    "embeddings.word_embeddings":          "embeddings.word",
    "embeddings.position_embeddings":      "embeddings.position",
    "embeddings.token_type_embeddings":    "embeddings.token_type",
    "embeddings.LayerNorm":                "embeddings.norm",
    "encoder.embedding_hidden_mapping_in": "embeddings.project",
} | {
    f"encoder.albert_layer_groups.{{g}}.albert_layers.0.{name}": f"groups.{{g}}.{ours}"
    for name, ours in {
        "attention.query":                 "attention.query",
        "attention.key":                   "attention.key",
        "attention.value":                 "attention.value",
        "attention.dense":                 "attention.output",
        "attention.LayerNorm":             "attention_norm",
        "ffn":                             "feed_forward.up",
        "ffn_output":                      "feed_forward.down",
        "full_layer_layer_norm":           "feed_forward_norm",
    }.items()
}
MLM = {
    "predictions.dense.weight":            "dense.weight",
    "predictions.dense.bias":              "dense.bias",
    "predictions.LayerNorm.weight":        "norm.weight",
    "predictions.LayerNorm.bias":          "norm.bias",
    "predictions.bias":                    "bias",
}
# fmt: on


FAMILIES = {
    "albert": Family(
        config=AlbertConfig,
        encoder=AlbertEncoder,
        supported=BERT_SUPPORTED,
        weight_names=WEIGHT_NAMES,
        prefixes=("albert.",),
        ignored_heads=("predictions", "sop_classifier", "pooler", "classifier", "qa_outputs"),
        transformers_class="AlbertModel",
        has_pooler=True,
        mlm_head_layouts=(MLM,),
        mlm_class="AlbertForMaskedLM",
        tokenizer="albert",
        bert_incompatible="its layers share their weights",
    ),
}
