"""Every layer and the first dimensions at once: one run, whose model may be cut to any of them afterwards.

A text then has several embeddings, its views: those of every layer, from 0, and the first numbers of each.
They lie side by side in one tensor, the whole embedding of the last layer at the end. Source: Kusupati et al.
2022, arXiv:2205.13147 (Matryoshka, the first dimensions); Li et al. 2024, arXiv:2402.14776 (of every layer).

Letters in this file: S sentences, P examples of k texts, D width of an embedding, L layers, K views.
"""

from collections.abc import Callable, Sequence
from random import Random

import torch
from torch import Tensor, nn

from tmft.errors import InputError, check_choice
from tmft.losses.distillation import DistillSettings, distill
from tmft.packing import PackedBatch
from tmft.sentence_encoder import SentenceEncoder
from tmft.training.freezing import Embedder

Views = list[tuple[Tensor, ...]]  # K of k embeddings, (P, size) each; the whole ones last


def summed(loss: Callable, views: Views, random: Random) -> Tensor:
    """The mean of the losses of all views."""
    return torch.stack([loss(view) for view in views]).mean()


def drawn(loss: Callable, views: Views, random: Random) -> Tensor:
    """The mean of that of the whole embedding and of one other view, a new one in each step."""
    return (loss(views[-1]) + loss(random.choice(views[:-1]))) / 2


def taught(loss: Callable, views: Views, random: Random) -> Tensor:
    """The loss of the whole embedding, which is the teacher of the other views, see distillation.py."""
    whole = torch.cat(views[-1]).detach()
    others = [distill(torch.cat(view), whole, DistillSettings.matrix) for view in views[:-1]]
    return loss(views[-1]) + torch.stack(others).mean()


EVERY_LAYER = {"sum": summed, "drawn": drawn, "taught": taught}


class Nested(Embedder):
    """Embeds sentences as all their views, and takes the loss of all.

    every_layer: a row of EVERY_LAYER, None: the last layer alone; matryoshka: how many first dimensions, in
    numbers that rise, beside all D; seed: of what is drawn. Raises InputError for what the model has not.
    """

    def __init__(
        self,
        model: SentenceEncoder,
        frozen: int | None,
        token_ids: Sequence[list[int]],
        every_layer: str | None,
        matryoshka: Sequence[int],
        seed: int,
    ):
        D, last = model.dimensions, len(model.encoder.layers)
        if every_layer:
            check_choice("every_layer", every_layer, EVERY_LAYER)
            for name, there in (("freeze", frozen), ("a mix of layers", model.layers)):
                if there is not None:
                    raise InputError(f"every_layer and {name}: leave one out", "every_layer", "freeze")
        bounds = [0, *matryoshka, D]
        if sorted(set(bounds)) != bounds:
            what = f"matryoshka {' '.join(map(str, matryoshka))}: write numbers that rise, from 1 to {D - 1}"
            raise InputError(what, "matryoshka")
        layers = range(last + 1) if every_layer else [last]
        self.parts = {}  # name of a view -> where it lies; the whole embedding has none
        for layer in layers:
            start = D * (layer - layers[0])
            for size in bounds[1:]:
                named = f"layer {layer} " * bool(every_layer) + f"first {size}" * (size < D)
                whole = layer == last and size == D
                self.parts["" if whole else named.strip()] = slice(start, start + size)
        several = every_layer if len(self.parts) > 1 else None  # embeddings alone are one layer
        self.every_layer, self.random = every_layer, Random(seed)
        self.combine = EVERY_LAYER[several or "sum"]
        super().__init__(model, frozen, token_ids)
        self.dimensions = D * len(layers)

    def state_dict(self) -> dict:
        return {"random": self.random.getstate()}

    def load_state_dict(self, state: dict) -> None:
        self.random.setstate(state["random"])

    def of_rows(self, rows: PackedBatch) -> Tensor:
        """Rows of S sentences -> the embeddings of all layers side by side, (S, (L + 1) D), or (S, D)."""
        if not self.every_layer:
            return super().of_rows(rows)
        return self.model.forward_all_layers(rows).transpose(0, 1).flatten(1)

    def views(self, embeddings: Tensor) -> dict[str, Tensor]:
        """What of_rows gave -> (S, size) of each view."""
        return {name: embeddings[:, part] for name, part in self.parts.items()}

    def loss(self, objective: nn.Module, *embeddings_and_target: Tensor) -> Tensor:
        """An objective's loss of all views: of_rows of k texts, P of each, and (P, ...) -> scalar"""
        *embeddings, target = embeddings_and_target
        of_texts = [self.views(u).values() for u in embeddings]
        views = list(zip(*of_texts, strict=True))
        return self.combine(lambda view: objective(*view, target), views, self.random)


def nested_options(option: Callable) -> None:
    """Those of a command line, added with option, argparse's add_argument."""
    option(
        "--every-layer",
        choices=EVERY_LAYER,
        help="train all layers at once, so that any can be kept "
        "afterwards: the mean of their losses, that of a drawn one, or taught by the last; default: none",
    )
    option(
        "--matryoshka",
        type=int,
        nargs="+",
        metavar="D",
        help="train the first D dimensions, too, so that they can be kept alone; default: none",
    )
