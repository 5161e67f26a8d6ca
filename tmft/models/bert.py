"""BERT and ELECTRA, written out: the embeddings, then l layers of self-attention and feed-forward.

Letters in this file: B rows, T tokens in a row, D hidden_size, E embedding_size, H heads, A = D / H.

A row holds one sentence and its padding, or several sentences side by side (tmft/packing.py). Two inputs say
which: attention_mask (B, T) is 0 on padding and otherwise any number that the tokens of one sentence share,
so the usual mask of ones is the case of one sentence per row; position_ids (B, T) restart at 0 in each.
"""

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tmft.errors import InputError
from tmft.speed.dropout import Dropout

ACTIVATIONS = {
    "gelu": F.gelu,  # exact, with the error function
    "gelu_new": partial(F.gelu, approximate="tanh"),
    "gelu_pytorch_tanh": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
    "silu": F.silu,
    "swish": F.silu,
    "tanh": torch.tanh,
}


@dataclass(frozen=True)
class EncoderConfig:
    """The shape of an encoder, under the names of config.json; tmft/families reads it."""

    model_type: str
    vocab_size: int
    embedding_size: int  # differs from hidden_size only in some ELECTRAs
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    intermediate_size: int
    hidden_act: str = "gelu"
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    layer_norm_eps: float = 1e-12
    hidden_dropout_prob: float = 0.1
    attention_probs_dropout_prob: float = 0.1
    initializer_range: float = 0.02
    pad_token_id: int = 0
    parts = ()  # names of what is built beside the encoder; see config_from_dict
    default_max_length = (
        None  # tokens of a text that are read where no file says; None: max_position_embeddings
    )

    def resolve_num_layers(self, layer: int | None) -> int:
        """The number of layers to keep: layer itself, or all for None. Raises InputError outside 0..L."""
        L = self.num_hidden_layers
        if layer is not None and not 0 <= layer <= L:
            raise InputError(
                f"layer {layer}: this checkpoint has {L} layers, choose 0 (embeddings only) to {L}"
            )
        return L if layer is None else layer


class Embeddings(nn.Module):
    """Word + position + token type, normalised; ELECTRA then projects from E to D where the two differ."""

    def __init__(self, config: EncoderConfig):
        super().__init__()
        E = config.embedding_size
        self.word = nn.Embedding(config.vocab_size, E)
        self.position = nn.Embedding(config.max_position_embeddings, E)
        self.token_type = nn.Embedding(config.type_vocab_size, E) if config.type_vocab_size else None
        self.norm = nn.LayerNorm(E, eps=config.layer_norm_eps)
        self.dropout = Dropout(config.hidden_dropout_prob)
        self.project = nn.Linear(E, config.hidden_size) if config.hidden_size != E else nn.Identity()

    def forward(self, input_ids: Tensor, position_ids: Tensor) -> Tensor:
        """input_ids, position_ids: (B, T) -> (B, T, D)"""
        embedded = self.word(input_ids) + self.position(position_ids)  # (B, T, E)
        if self.token_type is not None:
            embedded = embedded + self.token_type.weight[0]  # a sentence on its own is all of type 0
        return self.project(self.dropout(self.norm(embedded)))


class SelfAttention(nn.Module):
    """Multi-head self-attention; residual and LayerNorm are in Layer.

    The product, the softmax and the second product are written out. On short rows this is faster on a CPU
    than F.scaled_dot_product_attention, and it reads like the equation: softmax(Q K^T / sqrt(A)) V.
    """

    def __init__(self, config: EncoderConfig):
        super().__init__()
        self.num_heads = config.num_attention_heads
        self.query, self.key, self.value, self.output = (
            nn.Linear(config.hidden_size, config.hidden_size) for _ in range(4)
        )
        self.dropout = Dropout(config.attention_probs_dropout_prob)

    def forward(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """hidden: (B, T, D); mask: (B, 1, T, T), added to the scores, see block_diagonal_mask -> (B, T, D)"""
        B, T, D = hidden.shape
        q, k, v = (
            project(hidden).view(B, T, self.num_heads, -1).transpose(1, 2)  # (B, H, T, A)
            for project in (self.query, self.key, self.value)
        )
        scores = (q / math.sqrt(q.shape[-1])) @ k.transpose(-1, -2) + mask  # (B, H, T, T)
        context = self.dropout(scores.softmax(-1)) @ v  # (B, H, T, A)
        return self.output(context.transpose(1, 2).reshape(B, T, D))  # heads side by side again


class FeedForward(nn.Module):
    """Two linear maps with the activation between them, applied to each token alone."""

    def __init__(self, config: EncoderConfig):
        super().__init__()
        self.up = nn.Linear(config.hidden_size, config.intermediate_size)
        self.activation = ACTIVATIONS[config.hidden_act]
        self.down = nn.Linear(config.intermediate_size, config.hidden_size)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.down(self.activation(self.up(hidden)))


class Layer(nn.Module):
    """Post-norm: LayerNorm(x + f(x)), for f the self-attention and then the feed-forward."""

    def __init__(self, config: EncoderConfig):
        super().__init__()
        self.attention = SelfAttention(config)
        self.attention_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.feed_forward = FeedForward(config)
        self.feed_forward_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = Dropout(config.hidden_dropout_prob)

    def forward(self, hidden: Tensor, mask: Tensor) -> Tensor:
        hidden = self.attention_norm(hidden + self.dropout(self.attention(hidden, mask)))
        return self.feed_forward_norm(hidden + self.dropout(self.feed_forward(hidden)))


class BaseEncoder(nn.Module):
    """What each family's encoder is: config, embeddings, layers, and the hidden states of transformers.

    Number 0 is the output of the embeddings, number l that of layer l. inputs: input_ids, attention_mask and
    position_ids, (B, T) each, see above; position_ids count 0, 1, ... along the row when left out. A child
    has iter_hidden_states, which yields them one at a time, (B, T, D), so that nobody has to hold them all.
    """

    def hidden_states(self, *inputs: Tensor) -> list[Tensor]:
        """All l + 1 hidden states, each (B, T, D)."""
        return list(self.iter_hidden_states(*inputs))

    def forward(self, *inputs: Tensor) -> Tensor:
        """Hidden state l, (B, T, D)."""
        return deque(self.iter_hidden_states(*inputs), maxlen=1).pop()


class Encoder(BaseEncoder):
    """BERT or ELECTRA: the embeddings and the first `layer` layers; a layer above is never built.

    Weights start random as in BERT (normal, initializer_range).
    Source: Devlin et al. 2019, arXiv:1810.04805; Clark et al. 2020, arXiv:2003.10555.
    """

    def __init__(self, config: EncoderConfig, layer: int | None = None):
        super().__init__()
        self.config = config
        self.embeddings = Embeddings(config)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.resolve_num_layers(layer)))
        self.apply(partial(init_weights, std=config.initializer_range))

    def iter_hidden_states(self, input_ids, attention_mask, position_ids=None) -> Iterator[Tensor]:
        if position_ids is None:
            position_ids = torch.arange(input_ids.shape[1], device=input_ids.device).expand_as(input_ids)
        hidden = self.embeddings(input_ids, position_ids)
        yield hidden
        mask = block_diagonal_mask(attention_mask, hidden.dtype)[
            :, None
        ]  # (B, 1, T, T), the same for all heads
        for layer in self.layers:
            hidden = layer(hidden, mask)
            yield hidden


def block_diagonal_mask(attention_mask: Tensor, dtype: torch.dtype, looking: Tensor | None = None) -> Tensor:
    """What to add to the scores so that a token sees the tokens of its own sentence: (B, T) -> (B, T, T).

    0 where token i sees token j, else the lowest number. Made once for all layers, and unlike filling the
    scores, adding has nothing to do in the backward pass. Padding sees padding, which nobody reads. looking:
    the mask, (B, W), of other tokens that look at these, as a decoder's do -> (B, W, T)
    """
    unseen = (attention_mask if looking is None else looking)[:, :, None] != attention_mask[:, None, :]
    return torch.zeros_like(unseen, dtype=dtype).masked_fill(unseen, torch.finfo(dtype).min)


def init_weights(module: nn.Module, std: float) -> None:
    """BERT's initialisation: matrices normal with deviation std, biases 0, LayerNorm 1 and 0."""
    if isinstance(module, (nn.Linear, nn.Conv1d, nn.Embedding)):
        nn.init.normal_(module.weight, std=std)
    if isinstance(module, (nn.Linear, nn.Conv1d)) and module.bias is not None:
        nn.init.zeros_(module.bias)
