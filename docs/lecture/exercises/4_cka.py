"""Exercise 4: explain the best layer by CKA. Write `linear_cka`, then run

    python docs/lecture/exercises/4_cka.py    # how far two tasks have moved each layer from where it began
    python docs/lecture/check.py 4            # says whether it is right and, if not, what is wrong

Letters: N sentences, D1 and D2 dimensions of their embeddings by two models.
"""

import sys
from pathlib import Path

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from one_file import DATA, Encoder, read_pairs


def linear_cka(x: Tensor, y: Tensor) -> float:
    """Return linear CKA, a number from 0 to 1: how similar two models embed the same N sentences.

    x: (N, D1), y: (N, D2), the embeddings; row i of both is sentence i. The arguments stay as they are.
    Center both: subtract from each column its mean over the sentences, and no more. Then

        CKA = ||X'Y||^2 / (||X'X|| ||Y'Y||)

    where X' is the transpose, and ||.|| the Frobenius norm, the root of the sum of all squared numbers.
    CKA is 1 if Y is X rotated, shifted or scaled by one factor.
    Source: Kornblith et al. 2019, arXiv:1905.00414, section 3.
    """
    raise NotImplementedError("write this function")


@torch.no_grad()
def main(function, num_layers: int = 8) -> None:
    """Compare two models, layer by layer, with the ancestor from which both were trained further."""
    first, second, _ = read_pairs(DATA / "sample/dev.tsv")

    def embed(name, layer):
        return Encoder(DATA / f"twins/{name}", layer).embed(first + second)

    print("CKA with the ancestor, after training on")
    print("layer  masked words  replaced words")
    for layer in range(num_layers + 1):
        ancestor = embed("mlm", layer)
        masked, replaced = (
            float(function(ancestor, embed(name, layer))) for name in ("mlm-then-mlm", "mlm-then-rtd")
        )
        print(f"{layer:5}  {masked:12.2f}  {replaced:14.2f}")


if __name__ == "__main__":
    main(linear_cka)
