"""Exercise 2: one step of training. Write `training_step`, then run

    python docs/lecture/exercises/2_step.py    # trains four layers with it for three epochs
    python docs/lecture/check.py 2             # says whether it is right and, if not, what is wrong

Letters: P pairs of sentences in a batch, T tokens of the longest sentence, D size of a hidden state.
"""

import sys
from pathlib import Path

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from one_file import DATA, Encoder, read_pairs, spearman


def training_step(encoder, optimizer, ids: Tensor, mask: Tensor, scores: Tensor) -> float:
    """Change the weights of the encoder once, and return the loss of the batch, a number.

    ids, mask: (2P, T), the token ids of the P first sentences, then of the P second ones; the mask is 1 for
    tokens and 0 for padding. scores: (P,), what people said of each pair, from 0 to 5.

    1. `encoder.hidden_state(ids, mask)` returns the hidden states of the last kept layer, (2P, T, D).
    2. A sentence is the mean of its tokens, (2P, D); padding does not count.
    3. u and v, (P, D) each, are the first and the second sentences.
    4. The loss is the mean over the pairs of (cos(u, v) - score / 5)^2: torch.cosine_similarity(u, v), (P,).
    5. The optimizer makes one step with the gradients of this batch alone.
    The encoder has no dropout, and so no `train()` or `eval()`.
    Source: Rep et al. 2024; pooling and loss are those of Reimers and Gurevych 2019, arXiv:1908.10084.
    """
    raise NotImplementedError("write this function")


def main(function, epochs: int = 3, layer: int = 4) -> None:
    """Train four layers of a small ELECTRA with this step; print the loss and the score of each epoch."""
    encoder = Encoder(DATA / "twins/mlm-then-rtd", layer)
    optimizer = torch.optim.AdamW(encoder.weights.values(), lr=3e-4, weight_decay=0.01)
    train, dev = (read_pairs(DATA / f"sample/{split}.tsv") for split in ("train", "dev"))
    print(f"before training                dev Spearman {spearman(encoder, dev):.2f}")
    order = torch.Generator().manual_seed(0)
    for epoch in range(1, epochs + 1):
        losses = []
        for batch in torch.randperm(len(train[2]), generator=order).split(32):
            first, second, scores = ([column[i] for i in batch] for column in train)
            encodings = encoder.tokenizer.encode_batch(first + second)
            ids = torch.tensor([encoding.ids for encoding in encodings])
            mask = torch.tensor([encoding.attention_mask for encoding in encodings])
            losses.append(float(function(encoder, optimizer, ids, mask, torch.tensor(scores))))
        mean = sum(losses) / len(losses)
        print(f"epoch {epoch}: mean loss {mean:.4f}   dev Spearman {spearman(encoder, dev):.2f}")


if __name__ == "__main__":
    main(training_step)
