"""Encode one text of 256 to 8,192 tokens: time and peak memory, beside other libraries.

    python tests/bench/bench.py long

The models have 6 layers and random weights, in float32: one of ModernBERT-base's width, in which 4 of the 6
layers attend to neighbours, and one of MiniLM's width with the positions of bge-m3. The text is made of
random words of the tokenizer of --ckpt. Each measurement is a process of its own that loads the model,
encodes a short text, and then the long one. Its peak memory is VmHWM in /proc/self/status, the largest number
of pages that were in memory at once since the short text, less those in memory then; this needs Linux.
"""

import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

from bench_load import MEMORY

ROOT = Path(__file__).resolve().parent.parent.parent
LAYERS = 6
SHAPES = {
    "ModernBERT-base": {
        "model_type": "modernbert",
        "vocab_size": 50368,
        "hidden_size": 768,
        "num_attention_heads": 12,
        "intermediate_size": 1152,
        "max_position_embeddings": 8192,
    },
    "XLM-R with 8,194 positions and MiniLM's width": {
        "model_type": "xlm-roberta",
        "vocab_size": 30522,
        "hidden_size": 384,
        "num_attention_heads": 12,
        "intermediate_size": 1536,
        "max_position_embeddings": 8194,
        "type_vocab_size": 1,
        "pad_token_id": 1,
        "layer_norm_eps": 1e-5,
    },
}

# library -> the code that opens the folder {folder} and defines encode(text), which returns an embedding.
LIBRARIES = {
    "tmft": """
from tmft import SentenceEncoder
model = SentenceEncoder.from_pretrained({folder!r})
encode = lambda text: model.encode([text])[0]
""",
    "transformers": """
import torch, transformers
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()
model = transformers.AutoModel.from_pretrained({folder!r}, attn_implementation="sdpa").eval()
tokenizer = transformers.AutoTokenizer.from_pretrained({folder!r})
def encode(text):
    batch = tokenizer([text], return_tensors="pt", return_token_type_ids=False)
    with torch.inference_mode():
        return model(**batch).last_hidden_state[0].mean(0).numpy()
""",
    "sentence-transformers": """
from sentence_transformers import SentenceTransformer
model = SentenceTransformer({folder!r}, device="cpu")
encode = lambda text: model.encode([text])[0]
""",
}
# Prints the seconds for the text, VmRSS before it and VmHWM after it in KiB, and the embedding, as JSON.
PROGRAM = """
import json, sys, time
sys.path.insert(0, {root!r})
{library}
{memory}
text = sys.stdin.read()
encode(" ".join(text.split()[:60]))
open("/proc/self/clear_refs", "w").write("5")  # sets VmHWM to VmRSS
before, start = memory("VmRSS"), time.perf_counter()
embedding = encode(text)
print(json.dumps([time.perf_counter() - start, before, memory("VmHWM"), embedding.tolist()]))
"""


def random_text(tokenizer, num_tokens: int) -> str:
    """Return random words of a tokenizer, a token each, that are num_tokens with the special tokens."""
    words = sorted(word for word in tokenizer.backend.get_vocab() if word.isalpha() and word.islower())
    special = len(tokenizer.backend.encode("").ids)
    text = " ".join(random.Random(0).choices(words, k=num_tokens - special))
    if len(tokenizer.backend.encode(text).ids) != num_tokens:
        raise SystemExit("bench.py long: --ckpt needs a tokenizer that keeps the words of its vocabulary")
    return text


def write_model(content: dict, num_layers: int, tokenizer_of: Path, folder: Path) -> None:
    """Save a model with random weights, the config.json `content`, and the tokenizer of another folder."""
    from tmft import SentenceEncoder
    from tmft.checkpoints.tokenizers import load_tokenizer
    from tmft.models.families import config_from_dict, random_encoder

    config = config_from_dict(content | {"num_hidden_layers": num_layers})
    tokenizer = load_tokenizer(tokenizer_of)
    SentenceEncoder(random_encoder(config), tokenizer, max_length=config.max_tokens).save_pretrained(folder)


def run_process(library: str, folder: Path, text: str) -> tuple[float, float, list[float]]:
    """Encode a text in a process of its own; return the seconds, MiB of its peak, and the embedding."""
    opening = LIBRARIES[library].format(folder=str(folder))
    program = PROGRAM.format(root=str(ROOT), library=opening, memory=MEMORY)
    line, environment = [sys.executable, "-c", program], os.environ | {"HF_HUB_OFFLINE": "1"}
    answer = subprocess.run(line, input=text, capture_output=True, text=True, env=environment)
    if answer.returncode:
        raise SystemExit(f"{library} failed: {answer.stderr}")
    seconds, before, peak, embedding = json.loads(answer.stdout.splitlines()[-1])
    return seconds, (peak - before) / 1024, embedding


def measurements(
    content: dict, num_layers: int, tokenizer_of: Path, lengths: Sequence[int], rounds: int
) -> Iterator[str]:
    """Yield the lines of a table: each length with each library, which take turns in each round; medians.

    content: the config.json of the model. tokenizer_of: a folder with a tokenizer.
    """
    from tmft.checkpoints.tokenizers import load_tokenizer

    yield f"{'tokens':>6} {'':21} {'s':>7} {'tmft is x times as fast':>23} {'peak MiB':>8} {'difference':>10}"
    with tempfile.TemporaryDirectory() as scratch:
        write_model(content, num_layers, tokenizer_of, Path(scratch))
        for length in lengths:
            text = random_text(load_tokenizer(tokenizer_of), length)
            runs = {library: [] for library in LIBRARIES}
            for _ in range(rounds):
                for library in LIBRARIES:
                    runs[library].append(run_process(library, Path(scratch), text))
            for library, values in runs.items():
                seconds, peak, embedding = zip(*values, strict=True)
                ratio = median(a / b[0] for a, b in zip(seconds, runs["tmft"], strict=True))
                ours = runs["tmft"][0][2]
                difference = max(abs(a - b) for a, b in zip(embedding[0], ours, strict=True))
                yield (
                    f"{length:6} {library:21} {median(seconds):7.2f} {ratio:23.2f} {median(peak):8,.0f} "
                    f"{difference:10.0e}"
                )


def bench_long(args) -> None:
    """Print time and memory of encoding one text, by its length, beside other libraries."""
    print("peak: the largest amount of memory in use, less what the process used before this text")
    print("difference: the largest one of the embedding to that of tmft")
    for name, content in SHAPES.items():
        print(f"\n{LAYERS} layers with the shape of {name}, random weights, float32")
        for line in measurements(content, LAYERS, args.ckpt, args.lengths, args.rounds):
            print(line, flush=True)
