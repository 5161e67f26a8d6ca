"""What Python users may ask of encode, and what they give it: checked, and told by name where it is wrong."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

# Options of sentence-transformers' encode -> what they are here.
THEIRS = {
    "show_progress_bar": "progress",
    "convert_to_tensor": "tensor",
    "normalize_embeddings": "normalize",
    "truncate_dim": "dimensions",
}
# Those of them that change nothing here, with the values that may be given: rows are filled by their number
# of tokens, not of sentences.
NOTHING = {"convert_to_numpy": None, "batch_size": None, "device": (None,), "precision": (None, "float32")}
NOTHING |= {"output_value": ("sentence_embedding",), "prompt": (None, ""), "prompt_name": (None,)}


@dataclass(frozen=True)
class Wanted:
    """Of encode. normalize: to length 1; tensor: a torch tensor in place of numpy's array; dimensions: so
    many of the first ones."""

    progress: bool = False
    normalize: bool = False
    tensor: bool = False
    dimensions: int | None = None

    @classmethod
    def of(cls, progress: bool, asked: dict) -> "Wanted":
        """Options by our names or theirs. Raises TypeError for one that is none, or that cannot be had."""
        own = {"progress": progress}
        for name, value in asked.items():
            if name in NOTHING:
                if NOTHING[name] is not None and value not in NOTHING[name]:
                    raise TypeError(f"encode: {name}={value!r} is not to be had here")
            elif (mine := THEIRS.get(name, name)) in cls.__dataclass_fields__:
                own[mine] = value
            else:
                known = ", ".join([*cls.__dataclass_fields__, *THEIRS, *NOTHING])
                raise TypeError(f"encode: no option {name!r}, there are {known}")
        return cls(**own)

    def form(self, vectors: Tensor, single: bool) -> np.ndarray | Tensor:
        """(N, D) as it was asked for; of a single sentence (D,)."""
        vectors = vectors[:, : self.dimensions]
        vectors = F.normalize(vectors, dim=-1) if self.normalize else vectors
        vectors = vectors[0] if single else vectors
        return vectors if self.tensor else vectors.numpy()


def strings(sentences: Sequence[str]) -> list[str]:
    """Sentences as a list. Raises TypeError if it is one string, or names the first that is none."""
    if isinstance(sentences, str):
        raise TypeError("a list of sentences is expected, not one string: write [sentence]")
    sentences = list(sentences)
    for number, sentence in enumerate(sentences):
        if not isinstance(sentence, str):
            kind = type(sentence).__name__
            raise TypeError(f"sentence {number} is {str(sentence)[:40]!r}, of type {kind}: give strings")
    return sentences


def side_by_side(texts: Sequence[Sequence[str]]) -> list[list[str]]:
    """k lists of N sentences each. Raises TypeError or ValueError if they are none, or not equally long."""
    if isinstance(texts, str) or any(isinstance(column, str) for column in texts):
        raise TypeError("lists of sentences are expected, not strings: write ([a, b], [c, d])")
    columns = [strings(column) for column in texts]
    if len({len(column) for column in columns}) > 1:
        counts = ", ".join(str(len(column)) for column in columns)
        raise ValueError(
            f"lists of {counts} sentences: they belong together one by one, give as many of each"
        )
    return columns


def similarity(u: np.ndarray | Tensor, v: np.ndarray | Tensor) -> Tensor:
    """Cosines of each row of u, (N, D) or (D,), with each of v, (M, D) or (D,) -> (N, M) float32."""
    u, v = (torch.atleast_2d(torch.as_tensor(x)).float() for x in (u, v))
    return F.normalize(u, dim=-1) @ F.normalize(v, dim=-1).T


class AsCalledElsewhere:
    """Names by which the evaluators of sentence-transformers call a model."""

    similarity_fn_name = "cosine"
    similarity = staticmethod(similarity)

    def encode_query(self, sentences: str | Sequence[str], **asked) -> np.ndarray | Tensor:
        return self.encode(sentences, **asked)

    encode_document = encode_query

    class model_card_data:
        """Where they note their scores; ours stand in result.json."""

        @staticmethod
        def set_evaluation_metrics(*_, **__) -> None:
            pass
