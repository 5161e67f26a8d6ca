"""Exercise 1: attention from its formula. Write `attention`, then run

    python docs/lecture/exercises/1_attention.py    # puts it into a small ELECTRA and shows what it does
    python docs/lecture/check.py 1                  # says whether it is right and, if not, what is wrong

Letters: B sentences, T tokens of the longest one, D size of a hidden state, H heads, A = D / H.
"""

import sys
from pathlib import Path

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from one_file import DATA, Encoder, read_pairs, spearman


def attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """Return softmax(Q K^T / sqrt(A)) V for every head of every sentence, (B, H, T, the last size of v).

    q, k: (B, H, T, A), the queries and keys of the tokens. v: (B, H, T, any size), their values; the size is
    A in a BERT. mask: (B, T), 1 for tokens and 0 for padding at the end of a shorter sentence.
    Row i of softmax(...), (T, T), says how much token i takes of each token; its sum is 1. No token takes
    anything of padding: before the softmax, a score of a key that is padding becomes the lowest finite
    number, torch.finfo(q.dtype).min. What the queries of padding get does not matter.
    Write the products and the softmax yourself, without F.scaled_dot_product_attention.
    Source: Vaswani et al. 2017, arXiv:1706.03762, equation 1.
    """
    raise NotImplementedError("write this function")


class EncoderWithAttention(Encoder):
    """The encoder of one_file.py with another attention. function: as `attention` above."""

    function = None

    def attention(self, x, mask, name):
        B, T, D = x.shape
        H = self.config["num_attention_heads"]
        q, k, v = (
            self.linear(x, f"{name}.self.{part}").view(B, T, H, D // H).transpose(1, 2)  # (B, H, T, A)
            for part in ("query", "key", "value")
        )
        if name == "encoder.layer.0.attention":
            self.first_layer = q, k
        context = self.function(q, k, v, (mask[:, 0, 0] == 0).long()).transpose(1, 2).reshape(B, T, D)
        return self.linear(context, f"{name}.output.dense")


@torch.no_grad()
def main(function) -> None:
    """Score the encoder with this attention, and print what the tokens of a sentence attend to."""
    encoder = EncoderWithAttention(DATA / "twins/mlm-then-rtd", layer=4)
    encoder.function = function
    test = read_pairs(DATA / "sample/test.tsv")
    print(f"test Spearman of four layers, before training: {spearman(encoder, test):.2f}")
    sentence = "A man is playing a guitar."
    encoder.embed([sentence])
    q, k = encoder.first_layer
    T = q.shape[2]
    identity = torch.eye(T).expand(*q.shape[:2], T, T)  # with V = 1, the result is the weights themselves
    weights = function(q, k, identity, torch.ones(1, T, dtype=torch.long)).mean(1)[0]  # (T, T), of all heads
    tokens = encoder.tokenizer.encode(sentence).tokens
    for token, row in zip(tokens, weights, strict=True):
        taken = ", ".join(f"{tokens[i]} {row[i]:.2f}" for i in row.argsort(descending=True)[:3])
        print(f"{token:>8} takes most of {taken}")


if __name__ == "__main__":
    main(attention)
