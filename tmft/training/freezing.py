"""Freezing layers: a callback that does not train the first layers, and an `embed` for a frozen encoder."""

from collections.abc import Sequence
from itertools import chain

import torch
from torch import Tensor, nn

from tmft.callbacks import Callback, LoopState
from tmft.packing import PackedBatch
from tmft.sentence_encoder import SentenceEncoder
from tmft.training_task import Batch, PackedEmbedder


class FreezeLayers(Callback):
    """Callback that freezes the embeddings and the first layers: they get no gradient and no dropout.

    What they share with other layers, such as embeddings of relative positions, is frozen with them, so that
    the output of the last frozen layer never changes.
    num_frozen: the number of frozen layers, counted from the embeddings; 0 freezes the embeddings alone, -1
        the whole encoder; the attribute freezes_all says whether it is frozen.
    Make it before `fit` is called, because `fit` trains the weights that require a gradient at that time. All
    weights require a gradient again when the training ends.
    """

    def __init__(self, model: SentenceEncoder, num_frozen: int):
        encoder = model.encoder
        self.freezes_all = num_frozen < 0 or num_frozen >= len(encoder.layers)
        self.frozen_modules: list[nn.Module] = (
            [encoder] if self.freezes_all else encoder.bottom_modules(num_frozen)
        )
        for module in self.frozen_modules:
            module.requires_grad_(False)

    def on_epoch_begin(self, state: LoopState) -> None:
        for module in self.frozen_modules:
            module.eval()

    def on_train_end(self, state: LoopState) -> None:
        for module in self.frozen_modules:
            module.requires_grad_(True)


class PrecomputedEmbedder(PackedEmbedder, Callback):
    """Embeds sentences by a look-up: the frozen encoder encodes every distinct sentence once, beforehand.

    A step computes only the modules after the pooling, which may be trained. It is also a callback: the
    sentences of train and dev are encoded when the training begins, from the token ids that `fit` has made.
    Their pooled outputs are kept in float32.
    """

    def on_train_begin(self, state: LoopState) -> None:
        task, model = state.steps.task, self.model
        distinct = list(dict.fromkeys(map(tuple, chain(task.token_ids("train"), task.token_ids("dev")))))
        self.index = {ids: index for index, ids in enumerate(distinct)}
        pooled = model.embed_token_ids(distinct, self.pool, show_progress_bar=True)
        self.pooled = pooled.to(self.device)  # (S, pooled_dimensions)

    def pool(self, batch: PackedBatch) -> Tensor:
        """Return the vectors of the S sentences of a batch before the modules, (S, pooled_dimensions)."""
        return self.model.pool_tokens(self.model.hidden_states_of(batch), batch)

    def __call__(self, batch: Batch) -> Tensor:
        return self.look_up(batch.token_ids)

    def look_up(self, token_ids: Sequence[Sequence[int]]) -> Tensor:
        """Return the embeddings, (S, D) float32, of S sentences of train and dev.

        token_ids: the ids of each sentence.
        """
        indices = torch.tensor([self.index[tuple(ids)] for ids in token_ids], device=self.device)
        return self.model.apply_modules(self.pooled[indices])

    def embed_no_grad(self, token_ids: Sequence[Sequence[int]]) -> Tensor:
        """Look the sentences up, or encode them all if one is unknown; returns (S, D) float32 on the CPU."""
        if not all(tuple(ids) in self.index for ids in token_ids):  # the test split
            return super().embed_no_grad(token_ids)
        with torch.inference_mode():
            return self.look_up(token_ids).cpu()
