"""The readers that fuzz.py tests: one for each kind of file that users may download, with valid files."""

import gzip
import json
import logging
import lzma
import shutil
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from random import Random

import numpy as np
import torch
from conftest import PAIRS, ROOT, SENTENCES, VOCABULARY, load_encoder, tiny_model, vocabulary_folder
from safetensors.torch import load_file, save_file
from tokenizer_forms import FORMS

from tmft.callbacks import BestWeights
from tmft.checkpoints.save import save_encoder
from tmft.checkpoints.tokenizers import load_tokenizer, tokenizer_to_files
from tmft.data import read_examples
from tmft.datasets.download import unzip_texts, write_splits
from tmft.datasets.own_data import convert_tables, parse_columns
from tmft.datasets.readers import SHA256
from tmft.datasets.releases import RELEASES
from tmft.embedding.token_weights import TokenWeights
from tmft.io.distributed import single_process
from tmft.io.files import digest
from tmft.io.text import read_sentences
from tmft.models.families import config_from_dict, random_encoder
from tmft.pretraining.corpus import read_nonempty_lines
from tmft.sentence_encoder import SentenceEncoder
from tmft.serving.encode_file import encode_file, model_digest
from tmft.tasks import Task
from tmft.training.checkpointing import TrainingCheckpoint
from tmft.training_free.postprocessing import fit_postprocessing
from tmft.training_free.static_models import random_word_vectors, static_encoder, without_special_tokens

sys.path[:0] = [str(ROOT / "tests" / "datasets"), str(ROOT / "tests" / "models")]
from random_configs import RANDOM_CONFIGS  # noqa: E402
from test_releases import FORMS as RELEASE_FORMS  # noqa: E402
from test_releases import WORD_FILES  # noqa: E402


@dataclass
class Reader:
    """An entry of READERS. make: writes valid files into a folder. read: reads them. files: names or suffixes
    of the files that may be changed; () means all.
    """

    make: Callable[[Path], object]
    read: Callable[[Path], object]
    files: tuple[str, ...] = ()

    def may_change(self, name: str) -> bool:
        """Return whether fuzz.py may change the file with this name."""
        return not self.files or name.endswith(self.files)


def prepare_process() -> None:
    """Change settings of a process that only reads damaged files."""
    SHA256.clear()  # otherwise every change of a known file gives the same error
    logging.getLogger("tmft").setLevel(logging.ERROR)
    torch.set_num_threads(1)


# ----------------------------------------------------------------------------------------------- checkpoints


@cache
def model(kind: str) -> SentenceEncoder:
    """Return a tiny model. kind: "static", "modules", or "" for a plain one."""
    result = tiny_model()
    if kind == "static":
        table = random_word_vectors(len(VOCABULARY), 8)
        result = SentenceEncoder(static_encoder(table), without_special_tokens(result.tokenizer)).eval()
    if kind == "modules":
        vectors = torch.randn(60, 24, generator=torch.Generator().manual_seed(0))
        result.head_modules = torch.nn.Sequential(*fit_postprocessing("whiten+normalize", vectors))
        result.token_weights = TokenWeights(torch.linspace(0.1, 1, result.encoder.config.vocab_size))
        result.prompt = "query: "
    return result


def save_model(folder: Path, kind: str = "") -> None:
    """Save a tiny model."""
    model(kind).save_pretrained(folder)


def load_and_encode(folder: Path) -> None:
    """Load a model and encode some sentences."""
    SentenceEncoder.from_pretrained(folder).encode(SENTENCES)


def load_and_tokenize(folder: Path) -> None:
    """Load a tokenizer and use all of it."""
    tokenizer = load_tokenizer(folder)
    tokenizer([*SENTENCES, "", "한국 é ﬁ A\0 \u2028<url>[MASK]<extra_id_0>", "a" * 300], 64)
    tokenizer.vocabulary, tokenizer.num_special_tokens, tokenizer_to_files(tokenizer, 64)


def save_random_shape(folder: Path, model_type: str) -> None:
    """Save an encoder of a family, without a tokenizer; its shape is one of the odd ones of the tests."""
    torch.manual_seed(0)
    save_encoder(random_encoder(config_from_dict(RANDOM_CONFIGS[model_type](Random(0)))), folder)


def load_encoder_and_encode(folder: Path) -> None:
    """Load an encoder, and encode some sentences with the tokenizer of the tests."""
    SentenceEncoder(load_encoder(folder), load_tokenizer(vocabulary_folder())).eval().encode(SENTENCES)


def save_form(folder: Path, kind: str) -> None:
    """Save a tokenizer in one of the forms that checkpoints have, with the settings of old repositories."""
    FORMS[kind](folder)
    names = {"mask_token": {"content": "<mask>", "lstrip": True}, "additional_special_tokens": ["<url>"]}
    for name, content in {
        "tokenizer_config.json": {"model_max_length": 64, "add_prefix_space": False, "add_eos_token": True},
        "special_tokens_map.json": names,
        "added_tokens.json": {"<url>": 100_000},
    }.items():
        if not (folder / name).exists():
            (folder / name).write_text(json.dumps(content))


def save_shards(folder: Path) -> None:
    """Save a model in two shards with an index."""
    save_model(folder)
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    shard_of = {name: f"model-0000{1 + n % 2}.safetensors" for n, name in enumerate(weights)}
    for shard in set(shard_of.values()):
        save_file({name: weights[name] for name in weights if shard_of[name] == shard}, folder / shard)
    content = {"metadata": {"total_size": 1}, "weight_map": shard_of}
    (folder / "model.safetensors.index.json").write_text(json.dumps(content))


def save_bin(folder: Path, zipped: bool) -> None:
    """Save a model with pytorch_model.bin, in torch's new (zip) or old format."""
    save_model(folder)
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save(weights, folder / "pytorch_model.bin", _use_new_zipfile_serialization=zipped)


# ------------------------------------------------------------------------------------------------- data sets


def write_files(folder: Path, files: dict[str, str | bytes]) -> None:
    """Write files, compressed if their name ends with .gz."""
    for name, content in files.items():
        content = content.encode() if isinstance(content, str) else content
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)


def convert(folder: Path, name: str, file: str = "") -> None:
    """Read a release and write it as tmft data does."""
    content = RELEASES[name].read(folder / file if file else folder)
    if isinstance(content, dict):
        write_splits(content, name, folder.parent / "written" / name)
    else:
        list(content)


def read_zip(folder: Path) -> None:
    """Read SICK from its zip file."""
    out = folder.parent / "unzipped"
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    RELEASES["sick"].read(unzip_texts(folder / "SICK.zip", out))


def write_zip(folder: Path) -> None:
    """Write a zip file with SICK."""
    with zipfile.ZipFile(folder / "SICK.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("SICK/SICK.txt", RELEASE_FORMS["SICK, one file"][1]["SICK.txt"])
        archive.writestr("SICK/readme.txt", "read me")


LINES = ("A man plays.\n\nTwo dogs, é 한국.\r\n" * 20).encode()
TABLE = "\n".join(["sentence1\tsentence2\tscore", *PAIRS]) + "\n"


def read_texts(folder: Path) -> None:
    """Read plain text with and without compression."""
    list(read_nonempty_lines([folder / name for name in ("a.txt", "b.gz", "c.xz")]))


def read_tables(folder: Path) -> None:
    """Read a TSV file as a task and as sentences."""
    read_examples(Task(str(folder / "{split}.tsv")), "test")
    read_sentences(folder / "test.tsv")


OWN_TABLES = {
    "train.csv": 'sentence1,sentence2,score\n"a ""b""",c,4.5\nc,"d\ne",1\n' + "f,g,2\n" * 9,
    "dev.jsonl": '{"sentence1": "a", "sentence2": "b", "score": 3.25}\n' * 9,
    "test.tsv.gz": TABLE,
}


def convert_own_tables(folder: Path) -> None:
    """Convert tables of the user."""
    files = [str(folder / name) for name in OWN_TABLES]
    shutil.rmtree(folder / "out", ignore_errors=True)
    convert_tables(files, parse_columns("sentence1,sentence2,score"), folder / "out")


# ------------------------------------------------------------------------------------------ runs, embeddings


def resume_encoding(folder: Path) -> None:
    """Resume the encoding of a file."""
    encode_file(model(""), folder / "a.txt", folder / "a.npy", single_process(torch.device("cpu")))


def interrupt_encoding(folder: Path) -> None:
    """Write the first block of encode_file."""
    (folder / "a.txt").write_text("A man plays.\n" * 1500)
    encoder, parts = model(""), folder / "a.npy.parts"
    parts.mkdir()
    name = digest(json.dumps([model_digest(encoder), ["A man plays."] * 1024]))
    np.save(parts / f"{name}.npy", np.zeros((1024, encoder.dimensions), np.float32))


def load_checkpoint(folder: Path) -> TrainingCheckpoint:
    """Load the training checkpoint of a tiny run, if there is one."""
    layer = torch.nn.Linear(3, 3)
    layer(torch.ones(3)).sum().backward()
    optimizer = torch.optim.AdamW(layer.parameters())
    optimizer.step()
    process = single_process(torch.device("cpu"))
    checkpoint = TrainingCheckpoint(folder / "state.pt", {"steps": 4}, process)
    checkpoint.load({"layer": layer, "optimizer": optimizer}, BestWeights(layer))
    return checkpoint


READERS = {
    "table": Reader(lambda folder: write_files(folder, {"test.tsv": TABLE}), read_tables),
    "own tables": Reader(lambda folder: write_files(folder, OWN_TABLES), convert_own_tables),
    "text, gz, xz": Reader(
        lambda folder: [
            write_files(folder, {"a.txt": LINES, "b.gz": LINES}),
            (folder / "c.xz").write_bytes(lzma.compress(LINES)),
        ],
        read_texts,
    ),
    "zip": Reader(write_zip, read_zip),
    "words": Reader(lambda folder: write_files(folder, WORD_FILES), partial(convert, name="wordsim")),
    "safetensors": Reader(save_model, load_and_encode, ("model.safetensors",)),
    "safetensors index": Reader(save_shards, load_and_encode, ("index.json", ".safetensors")),
    "bin": Reader(partial(save_bin, zipped=True), load_and_encode, (".bin",)),
    "bin, old": Reader(partial(save_bin, zipped=False), load_and_encode, (".bin",)),
    "modules.json": Reader(
        partial(save_model, kind="modules"),
        load_and_encode,
        ("modules.json", "Pooling/config.json", "transformers.json", "bert_config.json", "tmft.json"),
    ),
    "modules": Reader(
        partial(save_model, kind="modules"),
        load_and_encode,
        (
            "Dense/config.json",
            "Dense/model.safetensors",
            "WordWeights/model.safetensors",
            "WordWeights/config.json",
        ),
    ),
    "static": Reader(partial(save_model, kind="static"), load_and_encode),
    "encode_file": Reader(interrupt_encoding, resume_encoding, (".npy",)),
    "state.pt": Reader(
        lambda folder: load_checkpoint(folder).save(step=1), lambda folder: load_checkpoint(folder).restore()
    ),
}
READERS |= {
    f"family {name}": Reader(
        partial(save_random_shape, model_type=name), load_encoder_and_encode, ("config.json",)
    )
    for name in RANDOM_CONFIGS
}
READERS |= {
    form: Reader(partial(write_files, files=files), partial(convert, name=name, file=file))
    for form, (name, files, file, _) in RELEASE_FORMS.items()
}
READERS |= {f"tokenizer {kind}": Reader(partial(save_form, kind=kind), load_and_tokenize) for kind in FORMS}
