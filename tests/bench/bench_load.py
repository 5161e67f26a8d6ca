"""Load a checkpoint of 0.6 billion parameters: time and peak memory, beside transformers.

    python tests/bench/bench.py load

The checkpoint is made in a temporary folder, with random weights in bfloat16, in three files, in the shape of
Qwen3-Embedding-0.6B, and is deleted afterwards. Each round is a process of its own that loads l layers and
embeds one sentence. Its peak memory is VmHWM in /proc/self/status, the largest number of pages that were in
memory at once. Pages of a mapped file count, although the system can drop them at any time; "own" is the
memory that it cannot drop, RssAnon at the end.
"""

import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent

QWEN3 = {
    "model_type": "qwen3",
    "vocab_size": 151669,
    "hidden_size": 1024,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 3072,
    "hidden_act": "silu",
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000,
    "attention_bias": False,
    "tie_word_embeddings": True,
    "use_sliding_window": False,
}
NUM_SHARDS = 3
TOKENS = list(range(100, 130))  # ids of the sentence

# Code of a program that defines memory(key): a value of /proc/self/status, such as VmRSS, in KiB.
MEMORY = """
def memory(key):
    lines = dict(line.split(":", 1) for line in open("/proc/self/status"))
    return int(lines[key].split()[0])
"""
# Prints the seconds for loading, those of processor time, the seconds for the sentence, and VmRSS, VmHWM and
# RssAnon in KiB.
PROGRAM = """
import sys, time
sys.path.insert(0, {root!r})
import torch
{imports}
{memory}
before = memory("VmRSS")
start, cpu_start = time.perf_counter(), time.process_time()
model = {load}
loaded, cpu = time.perf_counter(), time.process_time() - cpu_start
ids = torch.tensor([{tokens}])
with torch.inference_mode():
    model(ids, torch.ones_like(ids))
print(loaded - start, cpu, time.perf_counter() - loaded, before, memory("VmHWM"), memory("RssAnon"))
"""


def write_checkpoint(content: dict, folder: Path, num_shards: int = NUM_SHARDS) -> None:
    """Write a checkpoint with random weights in bfloat16, in several files with an index.

    content: its config.json. The files are of about equal size.
    """
    import torch
    from safetensors.torch import save_file

    from tmft.models.families import config_from_dict, empty_encoder, parameter_names

    config = config_from_dict(content)
    names = {ours: theirs for theirs, ours in parameter_names(config).items()}
    shapes = {names[name]: weight.shape for name, weight in empty_encoder(config).state_dict().items()}
    shard_size = math.ceil(sum(math.prod(shape) for shape in shapes.values()) / num_shards)
    weight_map, size = {}, 0
    for name, shape in shapes.items():
        weight_map[name] = f"model-{size // shard_size + 1:05d}-of-{num_shards:05d}.safetensors"
        size += math.prod(shape)
    for file in dict.fromkeys(weight_map.values()):
        mean = {name: float(name.endswith("norm.weight")) for name in shapes}
        weights = {
            name: torch.empty(shape, dtype=torch.bfloat16).normal_(mean[name], 0.02)
            for name, shape in shapes.items()
            if weight_map[name] == file
        }
        save_file(weights, folder / file, metadata={"format": "pt"})
    index = {"metadata": {"total_size": 2 * size}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "config.json").write_text(json.dumps(content | {"dtype": "bfloat16"}))


def loaders(folder: Path, model_type: str, layer: int, dtype: str) -> dict[str, tuple[str, str]]:
    """Return {library: (its imports, the expression that loads the first `layer` layers)}."""
    from tmft.models.families import FAMILIES

    family = FAMILIES[model_type]
    no_pooler = ", add_pooling_layer=False" if family.has_pooler else ""
    arguments = f"{str(folder)!r}, dtype=torch.{dtype}, num_hidden_layers={layer}{no_pooler}"
    imports = f"from transformers import {family.transformers_class} as Model, logging"
    return {
        "tmft": (
            "from tmft.checkpoints.load import load_encoder",
            f"load_encoder({str(folder)!r}, {layer}, {dtype!r})",
        ),
        "transformers": (
            f"{imports}; logging.set_verbosity_error(); logging.disable_progress_bar()",
            f"Model.from_pretrained({arguments}).eval()",
        ),
    }


def run_process(imports: str, load: str) -> tuple[float, ...]:
    """Return the numbers that PROGRAM prints in a process of its own: three in seconds, three in MiB."""
    program = PROGRAM.format(root=str(ROOT), imports=imports, memory=MEMORY, load=load, tokens=TOKENS)
    environment = os.environ | {"HF_HUB_OFFLINE": "1"}
    line = [sys.executable, "-c", program]
    answer = subprocess.run(line, stdout=subprocess.PIPE, text=True, check=True, env=environment)
    numbers = [float(number) for number in answer.stdout.split()]
    return *numbers[:3], *(kib / 1024 for kib in numbers[3:])


def measurements(content: dict, layer: int, rounds: int) -> Iterator[str]:
    """Yield the lines of a table: a checkpoint with this config.json, at `layer` layers and at all of them.

    In each cell of the table, rounds of tmft and transformers take turns, and medians are given.
    """
    from statistics import median

    from tmft.models.families import config_from_dict, parameter_counts

    config = config_from_dict(content)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        start = time.perf_counter()
        write_checkpoint(content, folder)
        size = sum(path.stat().st_size for path in folder.iterdir())
        yield f"made {size / 1e9:.2f} GB in {time.perf_counter() - start:.0f} s, which are in the file cache"
        yield (
            f"{'layers':>6} {'dtype':8} {'':12} {'load s':>7} {'ratio':>6} {'cpu s':>6} {'ratio':>6} "
            f"{'sentence s':>10} {'weights MiB':>11} {'peak MiB':>8} {'own MiB':>7}"
        )
        for kept in (layer, config.num_hidden_layers):
            for dtype, num_bytes in (("float32", 4), ("bfloat16", 2)):
                peers = loaders(folder, config.model_type, kept, dtype)
                values = {name: [] for name in peers}
                for _ in range(rounds):
                    for name, peer in peers.items():
                        values[name].append(run_process(*peer))
                weights = parameter_counts(config, kept)["stored"] * num_bytes / 2**20
                for name, runs in values.items():
                    load, cpu, forward, before, peak, own = map(median, zip(*runs, strict=True))
                    pairs = list(zip(runs, values["tmft"], strict=True))
                    ratio, cpu_ratio = (median(a[i] / b[i] for a, b in pairs) for i in (0, 1))
                    yield (
                        f"{kept:6} {dtype:8} {name:12} {load:7.2f} {ratio:6.2f} {cpu:6.2f} "
                        f"{cpu_ratio:6.2f} {forward:10.2f} "
                        f"{weights:11,.0f} {peak - before:8,.0f} {own:7,.0f}"
                    )


def bench_load(args) -> None:
    """Print time and memory of loading a checkpoint of 0.6 billion parameters, beside transformers."""
    print("peak: the largest amount of memory in use, less what the process used before loading")
    for line in measurements(QWEN3, 10, args.rounds):
        print(line, flush=True)
