"""What all encoders have in common: configuration, base class, attention mask and initialization of weights.

Letters: B rows of a batch, T tokens in a row, D dimensions of a hidden state (hidden_size), L layers of the
checkpoint, l of them kept.

A row of a batch holds one sentence and its padding, or several short sentences one after the other
(tmft/packing.py). Two inputs of an encoder say where each sentence is:

- attention_mask (B, T), int: 0 on padding. All tokens of a sentence have the same number, and the sentences
  of a row have different numbers. If each row has one sentence, this is the usual mask of ones and zeros.
- position_ids (B, T), int: the position of a token in its sentence, 0, 1, 2, ...
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tmft.errors import InputError
from tmft.speed.long_rows import LongRowMask, make_long_row_mask

UNLIMITED_LENGTH = 1 << 20  # max_position_embeddings of models without position embeddings, in tokens
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
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
    """The sizes and settings of an encoder, under the names that config.json has for them.

    tmft.models.families.config_from_dict builds it from the content of a config.json.
    """

    model_type: str
    vocab_size: int
    embedding_size: int  # differs from hidden_size only in some ELECTRAs and DeBERTas
    hidden_size: int
    num_hidden_layers: int  # of the checkpoint, also if fewer layers are kept
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
    default_max_length: ClassVar[int | None] = None  # in tokens; None: max_tokens
    first_layer_needed: ClassVar[str] = ""  # why layer 0 cannot be removed without the others; '' if it can
    whole_heads: ClassVar[bool] = True  # whether hidden_size has to be a multiple of num_attention_heads

    @property
    def position_offset(self) -> int:
        """The row of the position table for the first token of a sentence."""
        return 0

    @property
    def predicts_next_token(self) -> bool:
        """Whether no token attends to later ones, as in a model that was trained to predict the next one."""
        return False

    @property
    def components(self) -> tuple[str, ...]:
        """What is loaded besides the encoder, such as T5's decoder."""
        return ()

    @property
    def module_counts(self) -> dict[str, int]:
        """Letter -> the number of modules that a weight name with {letter} stands for.

        An example is {n}, the number of a layer. See Family.weight_names.
        """
        return {"n": self.num_hidden_layers}

    @property
    def max_tokens(self) -> int:
        """The number of tokens, special tokens included, of the longest sentence that fits the positions."""
        return self.max_position_embeddings - self.position_offset

    def check(self) -> None:
        """Raise InputError if a value is not supported, or if two values contradict each other."""
        if self.max_tokens < 3:  # a word between two special tokens
            start = f" from row {self.position_offset} on" if self.position_offset else ""
            raise InputError(
                f"max_position_embeddings {self.max_position_embeddings} (config.json): expected "
                f"{self.position_offset + 3} or more, a sentence needs 3 positions{start}"
            )
        D, H = self.hidden_size, self.num_attention_heads
        if self.whole_heads and D % H:
            raise InputError(
                f"hidden_size {D} is not a multiple of num_attention_heads {H} (config.json): one of the two "
                "is wrong"
            )

    def resolve_num_layers(self, layer: int | None) -> int:
        """Return the number of layers to keep: `layer`, or num_hidden_layers if it is None.

        Raises InputError if `layer` is not in 0 .. num_hidden_layers.
        """
        L = self.num_hidden_layers
        if layer is not None and not 0 <= layer <= L:
            raise InputError(
                f"layer {layer}: this checkpoint has {L} layers, choose 0 (embeddings only) to {L}"
            )
        return L if layer is None else layer


class TokenEmbeddings(nn.Module):
    """Base class of the embeddings of all encoders. It is used as it is where they are word embeddings alone.

    word: the embeddings of the tokens, (vocab_size, embedding_size).
    extra_ids: token ids that the encoder looks up in addition to those of its input.
    """

    word: nn.Embedding
    extra_ids: Sequence[int] = ()


class BaseEncoder(nn.Module):
    """Base class of the encoders, which map token ids to hidden states.

    Hidden state 0 is the output of the embeddings, hidden state n the output of layer n, as in transformers;
    an encoder with l layers has hidden states 0 .. l.
    A subclass sets the attributes below and implements iter_hidden_states.
    """

    config: EncoderConfig
    embeddings: TokenEmbeddings
    layers: nn.ModuleList
    kept_layers: tuple[int, ...] | None = None  # which layers of the checkpoint keep_layers has kept

    def iter_hidden_states(
        self, input_ids: Tensor, attention_mask: Tensor, position_ids: Tensor | None = None
    ) -> Iterator[Tensor]:
        """Yield the hidden states 0 .. l, (B, T, D) each.

        They are yielded one at a time, so that they need not all be in memory at once.
        input_ids: (B, T) int64. attention_mask, position_ids: (B, T), see the top of this file. position_ids
        default to 0, 1, ... along each row, which is right for one sentence per row.
        """
        raise NotImplementedError

    def hidden_states(
        self, input_ids: Tensor, attention_mask: Tensor, position_ids: Tensor | None = None
    ) -> list[Tensor]:
        """Return all l + 1 hidden states, (B, T, D) each. Parameters: those of iter_hidden_states."""
        return list(self.iter_hidden_states(input_ids, attention_mask, position_ids))

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, position_ids: Tensor | None = None
    ) -> Tensor:
        """Return the last hidden state, (B, T, D). Parameters: those of iter_hidden_states."""
        # The deque runs through all hidden states and keeps one; without gradients, the others are freed.
        return deque(self.iter_hidden_states(input_ids, attention_mask, position_ids), maxlen=1).pop()

    def bottom_modules(self, num_layers: int) -> list[nn.Module]:
        """Return the modules that compute the output of layer `num_layers`, 0 meaning the embeddings.

        If a family has modules that several layers share, they are among them for 1 layer or more.
        """
        return [self.embeddings, *self.layers[:num_layers]]

    def keep_layers(self, indices: Sequence[int]) -> None:
        """Remove all layers but these, in place. indices: from 0, in the order in which they will run."""
        if self.config.first_layer_needed and 0 not in indices:
            reason = self.config.first_layer_needed
            raise InputError(f"keep_layers must include layer 0: {reason}, add 0", "keep_layers")
        self.layers = nn.ModuleList(self.layers[index] for index in indices)
        before = self.kept_layers
        self.kept_layers = tuple(index if before is None else before[index] for index in indices)

    def saved_form(self) -> tuple[EncoderConfig, dict[str, Tensor]]:
        """Return the configuration and the state dict with which the encoder is saved.

        They are those of a checkpoint that has only the layers of this encoder.
        """
        return replace(self.config, num_hidden_layers=len(self.layers)), self.state_dict()


def default_position_ids(input_ids: Tensor) -> Tensor:
    """Return the positions 0, 1, ... along each row, those of one sentence per row.

    input_ids: (B, T). Returns (B, T).
    """
    return torch.arange(input_ids.shape[1], device=input_ids.device).expand_as(input_ids)


def block_diagonal_mask(
    attention_mask: Tensor,
    dtype: torch.dtype,
    query_ids: Tensor | None = None,
    before: int | None = None,
    after: int | None = None,
) -> Tensor:
    """Return the mask that is added to the attention scores, so that a token sees only its own sentence.

    attention_mask: (B, T), in which the tokens of a sentence have the same number, see the top of this file.
    Returns (B, T, T) in dtype: entry [b, i, j] is 0 if token i may attend to token j, else the lowest finite
    number. Padding attends to padding, which does no harm, because its output is never used. The mask is made
    once for all layers; unlike masked_fill on the scores, adding it costs nothing in the backward pass.

    query_ids: (B, W), the sentence numbers of the queries, as in attention_mask, if they are other tokens
    than the keys, such as the W tokens of a decoder. The result is then (B, W, T).

    before, after: how many tokens before itself and after itself a token may attend to; None means all of its
    sentence. A decoder has after=0. The tokens of a sentence are next to each other in a row, so that the
    distance between two of them is the distance between their columns.
    """
    queries = attention_mask if query_ids is None else query_ids
    is_masked = queries[:, :, None] != attention_mask[:, None, :]
    if before is not None or after is not None:
        columns = torch.arange(attention_mask.shape[1], device=attention_mask.device)
        distance = columns[None, :] - columns[:, None]  # (T, T), entry [i, j] is j - i
        if before is not None:
            is_masked = is_masked | (distance < -before)
        if after is not None:
            is_masked = is_masked | (distance > after)
    return torch.zeros_like(is_masked, dtype=dtype).masked_fill(is_masked, torch.finfo(dtype).min)


def make_attention_bias(
    attention_mask: Tensor, dtype: torch.dtype, before: int | None = None, after: int | None = None
) -> Tensor | LongRowMask:
    """Return the mask for the attention of a layer, the same for all heads.

    It is that of block_diagonal_mask, (B, 1, T, T) in dtype. Only in long rows, where it would take too much
    memory, it is that of make_long_row_mask. The parameters are those of block_diagonal_mask.
    """
    long_row_mask = make_long_row_mask(attention_mask, dtype, before, after)
    if long_row_mask is not None:
        return long_row_mask
    return block_diagonal_mask(attention_mask, dtype, before=before, after=after)[:, None]


def init_weights(module: nn.Module, std: float) -> None:
    """Initialize the weights of a module in place, as BERT does.

    Matrices are drawn from a normal distribution with standard deviation std, biases are 0. A LayerNorm keeps
    the initialization of torch, weight 1 and bias 0.
    """
    if isinstance(module, (nn.Linear, nn.Conv1d, nn.Embedding)):
        nn.init.normal_(module.weight, std=std)
    if isinstance(module, (nn.Linear, nn.Conv1d)) and module.bias is not None:
        nn.init.zeros_(module.bias)
