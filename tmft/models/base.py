"""What all encoders share: the configuration, the base class, the attention mask and the initialization.

Letters in this file: B rows of a batch, T tokens in a row, D hidden_size.

A row of a batch holds one sentence and its padding, or several short sentences one after the other
(tmft/packing.py). Two inputs say where each sentence is:

- attention_mask (B, T), int: 0 on padding; elsewhere any number that is the same for all tokens of one
  sentence and different for the others. The usual mask of ones is the case of one sentence per row.
- position_ids (B, T), int: 0, 1, 2, ... within each sentence.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tmft.errors import InputError

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
    """The sizes and settings of an encoder, under the names that config.json has for them.

    tmft.models.registry.config_from_dict builds it from the content of a config.json.
    """

    model_type: str
    vocab_size: int
    embedding_size: int  # differs from hidden_size only in some ELECTRAs and DeBERTas
    hidden_size: int
    num_hidden_layers: int  # of the checkpoint, however many of them are kept
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
    components: ClassVar[tuple[str, ...]] = ()  # modules that are loaded besides the encoder, as T5's decoder
    default_max_length: ClassVar[int | None] = None  # in tokens; None: max_position_embeddings

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


class BaseEncoder(nn.Module):
    """Base class of the encoders: token ids in, hidden states out.

    Hidden state 0 is the output of the embeddings, hidden state l the output of layer l, as in transformers.
    A subclass has the attributes `config`, `embeddings` (with the word embeddings `embeddings.word`) and
    `layers`, and implements iter_hidden_states.
    """

    def iter_hidden_states(
        self, input_ids: Tensor, attention_mask: Tensor, position_ids: Tensor | None = None
    ) -> Iterator[Tensor]:
        """Yield the hidden states 0 .. l one at a time, so that they need not all be in memory at once.

        input_ids, attention_mask, position_ids: (B, T), see the top of this file; position_ids default to
        0, 1, ... along each row. Each hidden state: (B, T, D).
        """
        raise NotImplementedError

    def hidden_states(self, *inputs: Tensor) -> list[Tensor]:
        """Return all l + 1 hidden states, (B, T, D) each."""
        return list(self.iter_hidden_states(*inputs))

    def forward(self, *inputs: Tensor) -> Tensor:
        """Return the last hidden state, number l: (B, T, D)."""
        return deque(self.iter_hidden_states(*inputs), maxlen=1).pop()


def block_diagonal_mask(
    attention_mask: Tensor, dtype: torch.dtype, query_ids: Tensor | None = None
) -> Tensor:
    """Make the mask that is added to the attention scores, so that a token sees only its own sentence.

    attention_mask: (B, T), the same number for the tokens of one sentence, see the top of this file.
    Returns (B, T, T) in dtype: 0 where token i may attend to token j, else the lowest finite number. Padding
    attends to padding, which does no harm: its output is never used. The mask is made once for all layers,
    and unlike masked_fill on the scores, an addition costs nothing in the backward pass.

    query_ids: (B, W), the sentence ids of other tokens that attend to these, such as the tokens of a decoder;
    the mask then has the shape (B, W, T).
    """
    queries = attention_mask if query_ids is None else query_ids
    hidden_from = queries[:, :, None] != attention_mask[:, None, :]
    return torch.zeros_like(hidden_from, dtype=dtype).masked_fill(hidden_from, torch.finfo(dtype).min)


def init_weights(module: nn.Module, std: float) -> None:
    """Initialize a module as BERT does: matrices from a normal distribution with standard deviation std,
    biases 0. LayerNorm keeps torch's own initialization, weight 1 and bias 0."""
    if isinstance(module, (nn.Linear, nn.Conv1d, nn.Embedding)):
        nn.init.normal_(module.weight, std=std)
    if isinstance(module, (nn.Linear, nn.Conv1d)) and module.bias is not None:
        nn.init.zeros_(module.bias)
