"""Encoders with a norm after the last layer: T5, ModernBERT and the decoders.

Letters: B rows of a batch, T tokens in a row, D hidden_size.
"""

from collections import deque
from collections.abc import Iterator

from torch import Tensor, nn

from tmft.encoder import BaseEncoder


class FinalNormEncoder(BaseEncoder):
    """Base class of the encoders that have a final norm.

    The final norm is applied to every hidden state, so that hidden state n is the output of a model with n
    layers. (transformers applies it to the last hidden state alone; its others are the values before it.)
    A subclass sets the attribute `norm` and implements iter_pre_norm_states.
    """

    norm: nn.Module

    def iter_pre_norm_states(
        self, input_ids: Tensor, attention_mask: Tensor, position_ids: Tensor | None = None
    ) -> Iterator[Tensor]:
        """Yield the output of the embeddings, then that of each layer, all without the final norm.

        Each is (B, T, D). The parameters are those of BaseEncoder.iter_hidden_states.
        """
        raise NotImplementedError

    def final_norm(self, hidden: Tensor) -> Tensor:
        """Return the hidden state for a state before the final norm: (B, T, D) -> (B, T, D)."""
        return self.norm(hidden)

    def iter_hidden_states(
        self, input_ids: Tensor, attention_mask: Tensor, position_ids: Tensor | None = None
    ) -> Iterator[Tensor]:
        """Yield the hidden states 0 .. l, (B, T, D) each.

        The parameters are those of BaseEncoder.iter_hidden_states.
        """
        for hidden in self.iter_pre_norm_states(input_ids, attention_mask, position_ids):
            yield self.final_norm(hidden)

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, position_ids: Tensor | None = None
    ) -> Tensor:
        """Return the last hidden state, (B, T, D). This saves the norms of the other hidden states."""
        pre_norm = deque(self.iter_pre_norm_states(input_ids, attention_mask, position_ids), maxlen=1).pop()
        return self.final_norm(pre_norm)
