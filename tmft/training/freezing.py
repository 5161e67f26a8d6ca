"""From the sentences of a batch to their embeddings, with a part of the encoder frozen, or none."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from tmft.packing import PackedBatch, pack
from tmft.sentence_encoder import SentenceEncoder


class Embedder:
    """Embeds sentences in rows; what is frozen gets no gradient and has no dropout.

    frozen: the number of layers, from below, None: not even the embeddings; -1, or as many as there are: the
    whole encoder. Then the sentences, token_ids, are embedded once and looked up, in float32.
    """

    def __init__(self, model: SentenceEncoder, frozen: int | None, token_ids: Sequence[list[int]]):
        self.model, self.device, self.dimensions = model, model.device, model.dimensions
        layers = model.encoder.layers
        whole = frozen is not None and (frozen < 0 or frozen >= len(layers))
        part = [] if frozen is None else [model.encoder.embeddings, *layers[: max(0, frozen)]]
        self.held: list[nn.Module] = [model.encoder] if whole else part
        for module in self.held:
            module.requires_grad_(False)
        self.table = self.looked_up(token_ids) if whole else None  # (S, D), of the distinct sentences

    def looked_up(self, token_ids: Sequence[list[int]]) -> Tensor:
        distinct = list(dict.fromkeys(map(tuple, token_ids)))
        self.place = {ids: number for number, ids in enumerate(distinct)}
        after, self.model.after = self.model.after, nn.Sequential()  # which is learnt
        try:
            return self.model.embed(distinct, progress=True).to(self.device)
        finally:
            self.model.after = after

    def hold(self) -> None:
        """No dropout in what is frozen, after the model was set to train."""
        for module in self.held:
            module.eval()

    def release(self) -> None:
        for module in self.held:
            module.requires_grad_(True)

    def state_dict(self) -> dict:
        """What changes from step to step: nothing here."""
        return {}

    def load_state_dict(self, state: dict) -> None:
        pass

    def read(self, sentences: list[list[int]]) -> Tensor:
        """The same without dropout and gradient, on the CPU."""
        if self.table is None:
            return self.model.read(sentences, self.of_rows, False)
        with torch.inference_mode():
            return self(sentences).cpu()

    def of_rows(self, rows: PackedBatch) -> Tensor:
        """Rows of S sentences -> (S, D) float32."""
        return self.model(rows)

    def __call__(self, sentences: list[list[int]]) -> Tensor:
        """Token ids of S sentences -> (S, D) float32."""
        if self.table is None:
            return self.of_rows(pack(sentences).to(self.device))
        places = torch.tensor([self.place[tuple(ids)] for ids in sentences], device=self.device)
        with torch.autocast(self.device.type, enabled=False):
            return self.model.after(self.table[places])
