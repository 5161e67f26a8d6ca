"""What fuzz.py reads: a row for each kind of file that may come from a stranger, whole as it is made here."""

import gzip
import json
import logging
import lzma
import shutil
import struct
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import numpy as np
import torch
from conftest import PAIRS, ROOT, SENTENCES, VOCABULARY, tiny_model
from safetensors.torch import load_file, save_file

import tmft.datasets.parse_pairs as formats
from tmft.checkpoints.save import save_encoder
from tmft.checkpoints.tokenizers import load_tokenizer
from tmft.data import read_examples
from tmft.tasks import Task
from tmft.datasets.parse_cs224n import read_cs224n
from tmft.datasets.parse_glue import read_glue
from tmft.datasets.parse_single import read_clustering, read_senteval, read_sst5
from tmft.datasets.parse_triplets import read_duplicates, read_triplets
from tmft.datasets.releases import write_splits
from tmft.datasets.task_lookup import read_sentences
from tmft.distributed import single_process
from tmft.embedding.postprocessing import fit_postprocessing
from tmft.embedding.static_embeddings import random_word_vectors, static_encoder, without_special_tokens
from tmft.embedding.token_weights import TokenWeights
from tmft.models.registry import config_from_dict, random_encoder
from tmft.pretraining.corpus import read_nonempty_lines
from tmft.reports.report import pretraining_table
from tmft.runs.sweeps import read_results, layer_table, group_into_sweeps
from tmft.sentence_encoder import SentenceEncoder
from tmft.serving.encode_file import encode_file
from tmft.serving.quantization import encode_precision
from tmft.training.checkpointing import Best, State

sys.path.insert(0, str(ROOT / "tests" / "datasets"))
from test_parse_glue import FILES as GLUE  # noqa: E402
from test_parse_pairs import FORMATS, write  # noqa: E402
from test_parse_single import FILES as TEXTS  # noqa: E402
from test_parse_triplets import CSV, NLI  # noqa: E402


@dataclass
class Reader:
    """make: writes whole files into a folder; read: reads them; files: names or suffixes of those to change,
    empty: all."""

    make: Callable[[Path], object]
    read: Callable[[Path], object]
    files: tuple[str, ...] = ()

    def changed(self, name: str) -> bool:
        return not self.files or name.endswith(self.files)


def alone() -> None:
    """What holds in the process that reads, and would disturb others."""
    formats.SHA256.clear()  # else every change of a known file is one and the same mistake
    logging.getLogger("tmft").setLevel(logging.ERROR)
    torch.set_num_threads(1)


# --------------------------------------------------------------------------------------------------- protobuf


def varint(number: int) -> bytes:
    low, rest = number & 127, number >> 7
    return bytes([low | 128]) + varint(rest) if rest else bytes([low])


def field(number: int, written: int, value: int | bytes) -> bytes:
    """One field of a protobuf message, as tmft/checkpoints/sentencepiece.py reads it."""
    key = varint(number << 3 | written)
    if written == 0:
        return key + varint(value)
    return key + (varint(len(value)) if written == 2 else b"") + value


def spm(special: list[str]) -> bytes:
    """A unigram model of a few letters, with a piece of every type."""
    pieces = [(piece, 0.0, 2 if "unk" in piece.lower() else 3) for piece in special]
    pieces += [
        (piece, -1.0 - n, 1) for n, piece in enumerate(["▁", "▁a", *"aeinost", "an", "▁the", "é", "한"])
    ]
    pieces.append(("<url>", 0.0, 4))
    fields = b"".join(
        field(1, 2, field(1, 2, piece.encode()) + field(2, 5, struct.pack("<f", score)) + field(3, 0, kind))
        for piece, score, kind in pieces
    )
    unk = next(n for n, (_, _, kind) in enumerate(pieces) if kind == 2)
    return (
        fields + field(2, 2, field(3, 0, 1) + field(40, 0, unk)) + field(3, 2, field(2, 2, character_map()))
    )


def character_map() -> bytes:
    """A trie in which A becomes a and nothing else is known: see check_character_map."""
    units = [0] * 256
    units[0] = 1 << 10  # from the root, whose offset is 1, A leads to 1 ^ 65
    units[64] = 65 | 1 << 8 | 2 << 10
    units[64 ^ 2] = 1 << 31
    return struct.pack("<I", 1024) + struct.pack("<256I", *units) + b"a\0"


# ----------------------------------------------------------------------------------------------- checkpoints


@cache
def model(kind: str) -> SentenceEncoder:
    made = tiny_model()
    if kind == "static":
        table = random_word_vectors(len(VOCABULARY), 8)
        made = SentenceEncoder(static_encoder(table), without_special_tokens(made.tokenizer)).eval()
    if kind == "modules":
        vectors = torch.randn(60, 24, generator=torch.Generator().manual_seed(0))
        made.head_modules = torch.nn.Sequential(*fit_postprocessing("whiten+normalize", vectors))
        made.token_weights = TokenWeights(torch.linspace(0.1, 1, made.encoder.config.vocab_size))
        made.prompt = "query: "
    return made


def saved(folder: Path, kind: str = "") -> None:
    model(kind).save_pretrained(folder)


def embed(folder: Path) -> None:
    SentenceEncoder.from_pretrained(folder).encode(SENTENCES)


def tokenize(folder: Path) -> None:
    tokenizer = load_tokenizer(folder)
    tokenizer([*SENTENCES, "", "한국 é ﬁ A\0 \u2028<url>[MASK]<extra_id_0>", "a" * 300], 64)
    tokenizer.vocabulary, tokenizer.num_special_tokens, tokenizer.to_files(64)


CONFIGS = {
    "bert": {},
    "deberta-v2": {"relative_attention": True, "position_buckets": 8, "max_relative_positions": -1,
                   "norm_rel_ebd": "layer_norm", "share_att_key": True, "pos_att_type": "p2c|c2p",
                   "position_biased_input": False, "type_vocab_size": 0},
    "t5": {"d_model": 24, "d_kv": 6, "d_ff": 40, "num_layers": 2, "num_heads": 4, "n_positions": 40,
           "relative_attention_num_buckets": 8, "dropout_rate": 0.1, "layer_norm_epsilon": 1e-6},
}  # fmt: skip


def family(folder: Path, kind: str) -> None:
    """A checkpoint of a family with a tokenizer of its own: vocab.txt, spm.model, spiece.model."""
    specials = ["<pad>", "</s>", "<unk>"] if kind == "t5" else ["[PAD]", "[CLS]", "[SEP]", "[UNK]"]
    content = {"model_type": kind, "vocab_size": 200, "hidden_size": 24, "embedding_size": 24,
               "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40,
               "max_position_embeddings": 40} | CONFIGS[kind]  # fmt: skip
    torch.manual_seed(0)
    save_encoder(random_encoder(config_from_dict(content)), folder)
    if kind == "bert":
        (folder / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n", encoding="utf-8")
    else:
        (folder / ("spiece.model" if kind == "t5" else "spm.model")).write_bytes(spm(specials))
    said = {"do_lower_case": True, "model_max_length": 64, "split_by_punct": True}
    (folder / "tokenizer_config.json").write_text(json.dumps(said))


def as_shards(folder: Path) -> None:
    saved(folder)
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    shard_of = {name: f"model-0000{1 + n % 2}.safetensors" for n, name in enumerate(weights)}
    for shard in set(shard_of.values()):
        save_file({name: weights[name] for name in weights if shard_of[name] == shard}, folder / shard)
    content = {"metadata": {"total_size": 1}, "weight_map": shard_of}
    (folder / "model.safetensors.index.json").write_text(json.dumps(content))


def as_bin(folder: Path, zipped: bool) -> None:
    saved(folder)
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save(weights, folder / "pytorch_model.bin", _use_new_zipfile_serialization=zipped)


def tokenizer_of(folder: Path, kind: str) -> None:
    """tokenizer.json of a BERT, a T5, a DeBERTa, or with byte pairs and other parts of the library."""
    if kind == "bert":
        shipped = ROOT / "data" / "twins" / "discriminator"
        content = json.loads((shipped / "tokenizer.json").read_text())
        content["model"]["vocab"] = {word: n for word, n in content["model"]["vocab"].items() if n < 300}
        (folder / "tokenizer.json").write_text(json.dumps(content))
        shutil.copy(shipped / "tokenizer_config.json", folder)
        return
    if kind in ("t5", "deberta"):
        family(folder, {"t5": "t5", "deberta": "deberta-v2"}[kind])
        files = load_tokenizer(folder).to_files(64)
        shutil.rmtree(folder)
        folder.mkdir()
        for name, text in files.items():
            (folder / name).write_text(text)
        return
    letters = ["[PAD]", "[CLS]", "[SEP]", *"abcdeĠ"]
    content = {
        "version": "1.0",
        "truncation": {"direction": "Right", "max_length": 9, "strategy": "LongestFirst", "stride": 2},
        "padding": {"strategy": "BatchLongest", "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0,
                    "pad_type_id": 0, "pad_token": "[PAD]"},
        "added_tokens": [
            {"id": n, "content": letters[n], "single_word": False, "lstrip": False, "rstrip": False,
             "normalized": False, "special": True} for n in range(3)],
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "NFKC"}, {"type": "Prepend", "prepend": "_"}, {"type": "StripAccents"},
            {"type": "Replace", "pattern": {"Regex": "\\s+"}, "content": " "},
            {"type": "Strip", "strip_left": True, "strip_right": True}]},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": "[a-c]+| ?\\p{L}+"}, "behavior": "Isolated",
             "invert": False},
            {"type": "Digits", "individual_digits": True}, {"type": "FixedLength", "length": 5},
            {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}]},
        "post_processor": {"type": "Sequence", "processors": [
            {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
            {"type": "BertProcessing", "sep": ["[SEP]", 2], "cls": ["[CLS]", 1]}]},
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": "",
                  "end_of_word_suffix": "", "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                  "vocab": {letter: n for n, letter in enumerate([*letters, "ab", "abc"])},
                  "merges": [["a", "b"], ["ab", "c"]]},
    }  # fmt: skip
    (folder / "tokenizer.json").write_text(json.dumps(content))


# ------------------------------------------------------------------------------------------------- data sets


def published(folder: Path, files: dict[str, str | bytes]) -> None:
    for name, content in files.items():
        content = content.encode() if isinstance(content, str) else content
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)


def whole_words() -> dict[str, str]:
    """The four lists of the word similarity set, each with as many pairs as it has to have."""
    files = {}
    for (name, *_), count, _ in formats.WORD_LISTS:
        mark = "," if name.endswith(".csv") else "\t"
        lines = [mark.join(["word1", "word2", "score"])] if not name.startswith("SimVerb") else []
        last = ["V", "1.5", "NONE"] if name.startswith("SimVerb") else ["1.5"]
        files[name] = "\n".join(lines + [mark.join([f"a{n}", f"b{n}", *last]) for n in range(count)]) + "\n"
    return files


def write_as(name: str, read: Callable, folder: Path) -> None:
    """A release as tmft data reads and writes it."""
    write_splits(read(folder), name, folder.parent / "written" / name)


def unzipped(folder: Path) -> None:
    out = folder.parent / "unzipped"
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    formats.read_sick(formats.unzip_texts(folder / "SICK.zip", out))


def zipped(folder: Path) -> None:
    with zipfile.ZipFile(folder / "SICK.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("SICK/SICK.txt", FORMATS["SICK, one file"][1]["SICK.txt"])
        archive.writestr("SICK/readme.txt", "read me")


GLUE_FILES = {
    f"{name}/{split}.tsv": "\n".join([header] * bool(header) + [one.format(n=n) for n in range(40)]) + "\n"
    for name, (header, one, _) in GLUE.items()
    for split in ("train", "dev", "dev_matched", "dev_mismatched")
}
COURSE = {
    f"ids-sst-{name}.csv": "\tid\tsentence\tsentiment\n0\taa\t A good film .\t3\n1\tbb\tBad\t0\n"
    for name in ("train", "dev", "test-student")
} | {
    f"quora-{name}.csv": '\tid\tsentence1\tsentence2\tis_duplicate\n7\taa\t"""W?"" he"\tWhy?\t0.0\n'
    for name in ("train", "dev")
}
LINES = ("A man plays.\n\nTwo dogs, é 한국.\r\n" * 20).encode()
TABLE = "\n".join(["sentence1\tsentence2\tscore", *PAIRS]) + "\n"


def texts_of(folder: Path) -> None:
    list(read_nonempty_lines([folder / name for name in ("a.txt", "b.gz", "c.xz")]))


def table_of(folder: Path) -> None:
    read_examples(Task(str(folder / "{split}.tsv")), "test")
    read_sentences(folder / "test.tsv")


def course_of(folder: Path) -> None:
    read_cs224n(folder, "ids-sst", "sentiment")
    read_cs224n(folder, "quora", "is_duplicate")


# ------------------------------------------------------------------------------------------ runs, embeddings


def resumed(folder: Path) -> None:
    encode_file(model(""), folder / "a.txt", folder / "a.npy", single_process(torch.device("cpu")))


def interrupted(folder: Path) -> None:
    """As encode_file leaves it after its first block."""
    (folder / "a.txt").write_text("A man plays.\n" * 1500)
    said = model("")
    about = [said.source, said.dimensions, said.pooling, said.max_length, said.prompt, encode_precision(said)]
    text = folder / "a.txt"
    of_text = [str(text.absolute()), text.stat().st_size, text.stat().st_mtime_ns]
    settings = {"model": about, "text": of_text, "lines": 1500}
    (folder / "a.npy.part-0-of-1.json").write_text(json.dumps(settings))
    (folder / "a.npy.part-0-of-1").write_bytes(np.zeros((1024, said.dimensions), "<f4").tobytes())


def state_in(folder: Path) -> State:
    layer = torch.nn.Linear(3, 3)
    layer(torch.ones(3)).sum().backward()
    optimizer = torch.optim.AdamW(layer.parameters())
    optimizer.step()
    state = State(folder / "state.pt", {"steps": 4}, single_process(torch.device("cpu")))
    state.read(layer, optimizer, best=Best(layer))
    return state


def finished(folder: Path) -> None:
    for twin in ("discriminator", "mlm", "t5"):
        (folder / twin).mkdir()
        shutil.copy(ROOT / "data" / "twins" / twin / "result.json", folder / twin)


def report(folder: Path) -> None:
    results = read_results(folder)
    for sweep in group_into_sweeps(results):
        layer_table(sweep)
    pretraining_table([result for _, result in results if "curve" in result])


READERS = {
    "table": Reader(lambda folder: published(folder, {"test.tsv": TABLE}), table_of),
    "text, gz, xz": Reader(
        lambda folder: [
            published(folder, {"a.txt": LINES, "b.gz": LINES}),
            (folder / "c.xz").write_bytes(lzma.compress(LINES)),
        ],
        texts_of,
    ),
    "zip": Reader(zipped, unzipped),
    "course": Reader(lambda folder: published(folder, COURSE), course_of),
    "glue": Reader(lambda folder: published(folder, GLUE_FILES), partial(write_as, "glue", read_glue)),
    "triplets": Reader(
        lambda folder: published(folder, {"a.csv": CSV}),
        lambda folder: write_as("nli-triplets", read_triplets, folder / "a.csv"),
    ),
    "inference": Reader(
        lambda folder: published(folder, {"a.tsv": NLI}),
        lambda folder: write_as("nli-triplets", read_triplets, folder / "a.tsv"),
    ),
    "duplicates": Reader(
        lambda folder: published(folder, {"a.tsv": "question1\tquestion2\tis_duplicate\na\tb\t1\n"}),
        lambda folder: write_as("quora-pairs", read_duplicates, folder / "a.tsv"),
    ),
    "words": Reader(
        lambda folder: published(folder, whole_words()), partial(write_as, "wordsim", formats.read_word_similarity)
    ),
    "clustering": Reader(
        lambda folder: published(folder, TEXTS["clustering"]),
        partial(write_as, "clustering", read_clustering),
    ),
    "senteval": Reader(
        lambda folder: published(folder, TEXTS["senteval"]), partial(write_as, "senteval", read_senteval)
    ),
    "sst5": Reader(lambda folder: published(folder, TEXTS["sst5"]), partial(write_as, "sst5", read_sst5)),
    "config.json": Reader(saved, embed, ("config.json",)),
    "config.json bert": Reader(partial(family, kind="bert"), embed, ("config.json", "vocab.txt")),
    "config.json deberta": Reader(partial(family, kind="deberta-v2"), embed, ("config.json",)),
    "config.json t5": Reader(partial(family, kind="t5"), embed, ("config.json",)),
    "safetensors": Reader(saved, embed, ("model.safetensors",)),
    "safetensors index": Reader(as_shards, embed, ("index.json", ".safetensors")),
    "bin": Reader(partial(as_bin, zipped=True), embed, (".bin",)),
    "bin, old": Reader(partial(as_bin, zipped=False), embed, (".bin",)),
    "modules.json": Reader(
        partial(saved, kind="modules"),
        embed,
        ("modules.json", "Pooling/config.json", "transformers.json", "bert_config.json", "tmft.json"),
    ),
    "modules": Reader(
        partial(saved, kind="modules"),
        embed,
        (
            "Dense/config.json",
            "Dense/model.safetensors",
            "WordWeights/model.safetensors",
            "WordWeights/config.json",
        ),
    ),
    "static": Reader(partial(saved, kind="static"), embed),
    "spm.model": Reader(partial(family, kind="deberta-v2"), tokenize, (".model", "tokenizer_config.json")),
    "spiece.model": Reader(partial(family, kind="t5"), tokenize, (".model", "tokenizer_config.json")),
    "vocab.txt": Reader(partial(family, kind="bert"), tokenize, ("vocab.txt", "tokenizer_config.json")),
    "tokenizer.json": Reader(partial(tokenizer_of, kind="bert"), tokenize),
    "tokenizer.json t5": Reader(partial(tokenizer_of, kind="t5"), tokenize),
    "tokenizer.json deberta": Reader(partial(tokenizer_of, kind="deberta"), tokenize),
    "tokenizer.json bpe": Reader(partial(tokenizer_of, kind="bpe"), tokenize),
    "encode_file": Reader(interrupted, resumed, (".json", "part-0-of-1")),
    "state.pt": Reader(
        lambda folder: state_in(folder).write([], 1), lambda folder: state_in(folder).take_up()
    ),
    "result.json": Reader(finished, report),
}
READERS |= {name: Reader(partial(write, files=files), read) for name, (read, files) in FORMATS.items()}
