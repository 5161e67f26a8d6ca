"""Truncated model fine-tuning on one page: the whole method, without a line of the library tmft.

    python docs/lecture/one_file.py                           # the small ELECTRA of this repository, 4 layers
    python docs/lecture/one_file.py FOLDER DATA_FOLDER LAYER  # another BERT or ELECTRA

FOLDER has config.json, model.safetensors and tokenizer.json; DATA_FOLDER has train.tsv, dev.tsv and test.tsv
with the columns sentence1, sentence2 and score, from 0 to 5. For a model of base size set PEAK_LR = 2e-5.
(Old checkpoints name the weights of LayerNorm gamma and beta; tmft renames them, this page does not.)
The scores are those of train.py in float32, if the checkpoint has no dropout. It is slower, because its
batches are padded.

Letters: B sentences of a batch, T tokens of the longest one, D size of a hidden state, H heads, A = D / H.
"""

import csv
import json
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from scipy.stats import spearmanr
from tokenizers import Tokenizer

DATA = Path(__file__).parents[2] / "data"
EPOCHS, BATCH_SIZE, PEAK_LR, WEIGHT_DECAY, WARMUP, MAX_NORM = 10, 32, 3e-4, 0.01, 0.1, 1.0


class Encoder:
    """The embeddings and the first `layer` layers of a BERT or ELECTRA: a dict of weights and a function."""

    def __init__(self, folder: Path, layer: int):
        self.config, self.layer = json.loads((folder / "config.json").read_text()), layer
        self.weights = {}
        for name, weight in load_file(folder / "model.safetensors").items():
            name = name.removeprefix("bert.").removeprefix("electra.")
            is_kept_layer = name.startswith("encoder.layer.") and int(name.split(".")[2]) < layer
            if is_kept_layer or name.startswith("embeddings"):  # heads and higher layers are left behind
                self.weights[name] = weight.float().requires_grad_()
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.tokenizer.enable_truncation(self.config["max_position_embeddings"])
        self.tokenizer.enable_padding()

    def linear(self, x, name):
        return F.linear(x, self.weights[f"{name}.weight"], self.weights[f"{name}.bias"])

    def layer_norm(self, x, name):
        weight, bias = self.weights[f"{name}.weight"], self.weights[f"{name}.bias"]
        return F.layer_norm(x, x.shape[-1:], weight, bias, self.config["layer_norm_eps"])

    def attention(self, x, mask, name):
        """Every token takes a weighted mean of all tokens: softmax(Q K^T / sqrt(A)) V in each of H heads."""
        B, T, D = x.shape
        H = self.config["num_attention_heads"]
        q, k, v = (
            self.linear(x, f"{name}.self.{part}").view(B, T, H, D // H).transpose(1, 2)  # (B, H, T, A)
            for part in ("query", "key", "value")
        )
        scores = q @ k.transpose(2, 3) / q.shape[-1] ** 0.5 + mask  # (B, H, T, T)
        context = (scores.softmax(-1) @ v).transpose(1, 2).reshape(B, T, D)
        return self.linear(context, f"{name}.output.dense")

    def hidden_state(self, ids, attention_mask):
        """Return the output of the last kept layer, (B, T, D). ids, attention_mask: (B, T), 0 on padding."""
        positions = torch.arange(ids.shape[1])
        x = self.weights["embeddings.word_embeddings.weight"][ids]
        x = x + self.weights["embeddings.position_embeddings.weight"][positions]
        x = x + self.weights["embeddings.token_type_embeddings.weight"][0]
        x = self.layer_norm(x, "embeddings.LayerNorm")
        if "embeddings_project.weight" in self.weights:  # ELECTRAs whose embeddings are narrower than D
            x = self.linear(x, "embeddings_project")
        mask = torch.where(attention_mask[:, None, None, :] == 1, 0.0, torch.finfo(x.dtype).min)
        for n in range(self.layer):  # THE TRUNCATION: layers from `layer` on do not exist
            name = f"encoder.layer.{n}"
            attended = self.attention(x, mask, f"{name}.attention")
            x = self.layer_norm(x + attended, f"{name}.attention.output.LayerNorm")
            inner = F.gelu(self.linear(x, f"{name}.intermediate.dense"))
            x = self.layer_norm(x + self.linear(inner, f"{name}.output.dense"), f"{name}.output.LayerNorm")
        return x

    def embed(self, sentences):
        """THE POOLING: a sentence is the mean of its tokens. Returns (B, D)."""
        encodings = self.tokenizer.encode_batch(sentences)
        ids = torch.tensor([encoding.ids for encoding in encodings])
        mask = torch.tensor([encoding.attention_mask for encoding in encodings])
        hidden = self.hidden_state(ids, mask) * mask[:, :, None]
        return hidden.sum(1) / mask.sum(1, keepdim=True)


def read_pairs(path):
    """Return the first sentences, the second sentences and the scores of a file, three lists."""
    with open(path, encoding="utf-8", newline="") as file:
        lines = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    columns = [[line[name] for line in lines] for name in ("sentence1", "sentence2")]
    return *columns, [float(line["score"]) for line in lines]


@torch.no_grad()
def spearman(encoder, pairs):
    """Return the rank correlation of the cosines with the scores that people gave, x 100."""
    first, second, scores = pairs
    cosines = []
    for start in range(0, len(scores), 64):
        u, v = encoder.embed(first[start : start + 64]), encoder.embed(second[start : start + 64])
        cosines += torch.cosine_similarity(u.double(), v.double()).tolist()
    return 100 * spearmanr(cosines, scores).statistic


def main(folder=DATA / "twins/mlm-then-rtd", data=DATA / "sample", layer=4, epochs=EPOCHS, seed=0):
    """Fine-tune the truncated encoder, print a line for each epoch, and return the score on test."""
    encoder = Encoder(Path(folder), int(layer))
    train, dev, test = (read_pairs(Path(data) / f"{split}.tsv") for split in ("train", "dev", "test"))

    # Matrices decay, biases and LayerNorms do not. The rate rises for a tenth of the steps, then falls to 0.
    weights = list(encoder.weights.values())
    matrices, vectors = [w for w in weights if w.ndim > 1], [w for w in weights if w.ndim == 1]
    groups = [{"params": matrices, "weight_decay": WEIGHT_DECAY}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=PEAK_LR)
    steps = epochs * -(-len(train[2]) // BATCH_SIZE)
    rising = int(WARMUP * steps)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: step / rising if step < rising else (steps - step) / (steps - rising)
    )

    order, best, best_weights = torch.Generator().manual_seed(seed), -101.0, None
    for epoch in range(1, epochs + 1):
        for batch in torch.randperm(len(train[2]), generator=order).split(BATCH_SIZE):
            first, second, scores = ([column[i] for i in batch] for column in train)
            u, v = encoder.embed(first + second).chunk(2)
            # THE LOSS: the cosine of two embeddings should be the score of the pair, scaled to 0 .. 1.
            loss = F.mse_loss(torch.cosine_similarity(u, v), torch.tensor(scores) / 5)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(weights, MAX_NORM)
            optimizer.step()
            schedule.step()
        score = spearman(encoder, dev)
        print(f"epoch {epoch:2}  loss of the last batch {loss.item():.4f}  dev {score:.2f}")
        if score > best:  # the epoch that is best on dev is the one that counts
            best, best_weights = score, [weight.detach().clone() for weight in weights]
    for weight, value in zip(weights, best_weights, strict=True):
        weight.data = value
    result = spearman(encoder, test)
    print(f"layer {encoder.layer}: dev {best:.2f}, test {result:.2f}")
    return result


if __name__ == "__main__":
    main(*sys.argv[1:4])
