"""Exercise 5: make it small. Write `distill`, then run

    python docs/lecture/exercises/5_small.py    # one layer learns the embeddings of a model of three
    python docs/lecture/check.py 5              # says whether it is right and, if not, what is wrong

Letters: B lines of a batch, D dimensions of an embedding.
"""

import sys
from copy import deepcopy
from pathlib import Path

import torch
from scipy.stats import spearmanr

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from one_file import DATA, read_pairs

sys.path.insert(0, str(DATA.parent))  # the checkout, with tmft
from tmft import SentenceEncoder
from tmft.packing import pack
from tmft.students.distill import draw_random_lines


def distill(
    teacher, student, optimizer, lines: list[str], held_out: list[str], epochs: int = 2, batch_size: int = 64
) -> None:
    """Train the student to give each line the embedding that the teacher gives it.

    `teacher.embed(texts)` and `student.embed(texts)` return the embeddings of a list of texts, (B, D).
    optimizer: it has the weights of the student, and changes them in place; return nothing.
    lines: the text to train on, no labels. held_out: the sentences of dev and test. A line that equals one of
    them is left out before the training, also if it differs in capitals or in spaces around it:
    `line.strip().lower()`. The other lines are given to both models as they are.

    In each epoch, every line is in one batch of at most batch_size lines, and each batch is one step; a line
    that occurs twice is trained on twice. Draw a new order in each epoch: torch.randperm, which `main` seeds.
    The loss is the mean of 1 - cos(student, teacher). The teacher does not learn: no gradient reaches it.
    Source: Reimers and Gurevych 2020, arXiv:2004.09813, with the cosine in place of the squared error.
    """
    raise NotImplementedError("write this function")


class Model:
    """A model of tmft with the `embed` that `distill` calls."""

    def __init__(self, encoder: SentenceEncoder):
        self.encoder = encoder

    def embed(self, texts: list[str]) -> torch.Tensor:
        return self.encoder(pack(self.encoder.tokenize(texts)))

    def train(self, mode: bool = True) -> None:
        """Do nothing: `main` has switched dropout on for the student, and off for the teacher."""

    eval = train


@torch.no_grad()
def describe(name: str, model: Model, pairs) -> None:
    """Print the size of a model and its score on pairs."""
    model.encoder.eval()
    first, second, scores = pairs
    u, v = (model.embed(texts).double() for texts in (first, second))
    score = 100 * spearmanr(torch.cosine_similarity(u, v), scores).statistic
    millions = sum(weight.numel() for weight in model.encoder.parameters()) / 1e6
    print(
        f"{name:24} {len(model.encoder.encoder.layers)} layers, {millions:.1f} million numbers: {score:.2f}"
    )


def main(function, num_random_lines: int = 1500, epochs: int = 2) -> None:
    """Make a model of one layer from `small`, and print the test Spearman of both."""
    teacher = Model(SentenceEncoder.from_pretrained(DATA / "small"))
    student = Model(deepcopy(teacher.encoder))
    student.encoder.keep_layers([0])
    train, dev, test = (read_pairs(DATA / f"sample/{split}.tsv") for split in ("train", "dev", "test"))
    describe("the teacher", teacher, test)
    describe("its first layer", student, test)
    held_out = dev[0] + dev[1] + test[0] + test[1]
    lines = train[0] + train[1] + held_out + draw_random_lines(teacher.encoder, seed=0)[:num_random_lines]
    optimizer = torch.optim.AdamW(student.encoder.parameters(), lr=5e-4)
    student.encoder.train()
    torch.manual_seed(0)
    function(teacher, student, optimizer, lines, held_out, epochs)
    describe("the same, distilled", student, test)


if __name__ == "__main__":
    main(distill)
