"""Compare the engines that encode sentences on a CPU, each in a process of its own.

    python tests/bench/bench.py engines --json engines.json

converts the model for ONNX Runtime, and measures every engine of ENGINES. All have THREADS threads. First
each one embeds the pairs of STSB test; then all of them are started again, one after the other, until their
first embedding (their files are in the system's cache now); then they take turns with the sentences of a
round, and with one sentence of 12 tokens.
"""

import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from bench import ROOT, cpu_name, measure, package_versions

from tmft import SentenceEncoder
from tmft.data import read_examples
from tmft.datasets.task_lookup import get_task
from tmft.export.export import export
from tmft.io.formatting import markdown_table
from tmft.metrics import spearman

THREADS = 2
PROCESS = Path(__file__).with_name("engine_process.py")
# Names of models: the folder of --ckpt, what is converted from it, and a smaller model.
MINILM, ONNX, ONNX_INT8, FUSED, TINY = "all-MiniLM-L6-v2", "onnx", "onnx-int8", "fused", "data/tiny"


class Engine(NamedTuple):
    """A row of the table. function: an entry of ENGINES in engine_process.py, with its options."""

    name: str
    function: str
    model: str
    options: dict[str, str]


# fmt: off
ST = "sentence-transformers"
FILE, FILE_INT8, FILE_FUSED = ({"file_name": f"{name}.onnx"}
                               for name in ("model", "model_qint8_avx512_vnni", "int8"))
ENGINES = [Engine(*row) for row in (
    ("sentence-transformers, fp32 (default)",  ST, MINILM, {}),
    ("sentence-transformers, bf16 weights",    ST, MINILM, {"dtype": "bfloat16"}),
    ("ONNX Runtime, fused, int8",              "onnx", FUSED, FILE_FUSED),
    ("tmft, exported to ONNX",                 "onnx", ONNX, FILE),
    ("tmft, exported to ONNX, int8",           "onnx", ONNX_INT8, FILE_INT8),
    ("tmft, fp32",                             "tmft", MINILM, {"precision": "fp32"}),
    ("tmft, bf16",                             "tmft", MINILM, {"precision": "bf16"}),
    ("tmft, int8",                             "tmft", MINILM, {"precision": "int8"}),
    ("another model: tiny, tmft, int8",        "tmft", TINY, {"precision": "int8"}),
)]
# fmt: on


def convert(ckpt: Path, folder: Path, names: set[str]) -> dict[str, Path]:
    """Convert a checkpoint to the models that are named; return the folder of each model, by name."""
    model = SentenceEncoder.from_pretrained(ckpt)
    if ONNX in names:
        export(model, folder / ONNX, format="onnx")
    if ONNX_INT8 in names:
        from onnxruntime.quantization import quantize_dynamic

        export(model, folder / ONNX_INT8, format="onnx")
        graph = folder / ONNX_INT8 / "onnx/model.onnx"
        operators = ["MatMul", "Gemm", "Gather"]
        quantize_dynamic(graph, graph.with_name("model_qint8_avx512_vnni.onnx"), operators, per_channel=True)
    if FUSED in names:
        fuse(ckpt, folder / FUSED)
    return {MINILM: ckpt, TINY: ROOT / TINY} | {name: folder / name for name in (ONNX, ONNX_INT8, FUSED)}


def fuse(ckpt: Path, folder: Path) -> None:
    """Export a BERT with torch, fuse its operators by ONNX Runtime's optimizer, quantize it dynamically."""
    from onnx import TensorProto
    from onnxruntime.quantization import QuantType, quantize_dynamic
    from onnxruntime.transformers.optimizer import optimize_model
    from transformers import AutoModel

    class HiddenStates(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = AutoModel.from_pretrained(ckpt, attn_implementation="eager").eval()

        def forward(self, *batch):
            return self.model(**dict(zip(names, batch, strict=True))).last_hidden_state

    names, output = ["input_ids", "attention_mask", "token_type_ids"], "last_hidden_state"
    (folder / "onnx").mkdir(parents=True)
    shutil.copy(ckpt / "tokenizer.json", folder)
    module, batch = HiddenStates(), (torch.ones(2, 5, dtype=torch.long),) * 3
    sizes = {name: {0: "sentences", 1: "tokens"} for name in (*names, output)}
    graph, fused = folder / "onnx/model.onnx", folder / "onnx/fused.onnx"
    torch.onnx.export(
        module, batch, graph, input_names=names, output_names=[output], dynamic_axes=sizes, dynamo=False
    )
    config = module.model.config
    heads = {"num_heads": config.num_attention_heads, "hidden_size": config.hidden_size}
    optimize_model(str(graph), model_type="bert", **heads).save_model_to_file(str(fused))
    types = {"weight_type": QuantType.QInt8, "extra_options": {"DefaultTensorType": TensorProto.FLOAT}}
    quantize_dynamic(fused, folder / "onnx/int8.onnx", **types)


class Process:
    """A process that has opened an engine and embedded one sentence. seconds: from its start until then."""

    def __init__(self, engine: Engine, models: dict[str, Path]):
        command = [sys.executable, PROCESS, engine.function, models[engine.model], json.dumps(engine.options)]
        threads = {name: str(THREADS) for name in ("OMP_NUM_THREADS", "RAYON_NUM_THREADS")}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        start = time.perf_counter()
        self.process = subprocess.Popen(list(map(str, command)), env=os.environ | threads, **pipes)
        self.read()
        self.seconds, self.peak = time.perf_counter() - start, None

    def read(self) -> dict[str, Any]:
        """Return the next answer. Raises RuntimeError if the process has ended; its error is printed."""
        if line := self.process.stdout.readline():
            return json.loads(line)
        raise RuntimeError(f"{' '.join(map(str, self.process.args))}: ended with {self.process.wait()}")

    def embed(self, sentences: list[str], repeat: int = 1, file: Path | None = None) -> float:
        """Embed sentences; return the median of the seconds."""
        time.sleep(0.2)  # until the threads of the engine before have stopped waiting for work
        question = {"sentences": sentences, "repeat": repeat, "file": file and str(file)}
        self.process.stdin.write(json.dumps(question) + "\n")
        self.process.stdin.flush()
        answer = self.read()
        self.peak = answer["peak"]
        return answer["seconds"]

    def close(self) -> None:
        """End the process."""
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


def model_size(engine: Engine, folder: Path) -> int:
    """Return the size in bytes of the graph that an engine opens, or of a whole folder."""
    graph = engine.options.get("file_name")
    files = [folder / "onnx" / graph] if graph else folder.rglob("*")
    return sum(path.stat().st_size for path in files if path.is_file())


def quality(embeddings: np.ndarray, labels: list[float], exact: np.ndarray) -> dict[str, float]:
    """Return the Spearman correlation x 100 on STSB test, and the cosines with the embeddings in float32.

    embeddings, exact: (2 N, D), of the first sentences of N pairs and then of the second ones.
    """
    found = torch.from_numpy(embeddings)
    cosines = torch.cosine_similarity(*found.chunk(2))
    same = torch.cosine_similarity(found.double(), torch.from_numpy(exact).double())
    return {
        "spearman": 100 * spearman(cosines.numpy(), np.array(labels)),
        "distance": max(0.0, 1 - same.mean().item()),
        "lowest_cosine": same.min().item(),
    }


def bench_engines(args) -> None:
    """Measure every engine, print the table, and write the file of --json."""
    task = get_task("stsb", data=str(args.data))
    texts, test = read_examples(task, "train").texts, read_examples(task, "test")
    sentences = list(dict.fromkeys(texts[0]))[: args.sentences]  # tmft embeds equal ones once
    one = ["A man plays a guitar on the stage tonight."]  # 12 tokens
    chosen = [engine for engine in ENGINES if not args.engines or any(w in engine.name for w in args.engines)]
    rows, processes = {}, {}
    with tempfile.TemporaryDirectory() as folder:
        models = convert(args.ckpt, Path(folder), {engine.model for engine in chosen})
        file = Path(folder) / "embeddings.npy"
        exact = {
            name: SentenceEncoder.from_pretrained(models[name]).encode(test.sentences)
            for name in (MINILM, TINY)
        }
        for engine in chosen:
            process = Process(engine, models)
            process.embed(test.sentences, file=file)
            process.close()
            source = TINY if engine.model == TINY else MINILM
            rows[engine.name] = quality(np.load(file), test.labels, exact[source])
            rows[engine.name]["megabytes"] = model_size(engine, models[engine.model]) / 1e6
        for engine in chosen:
            time.sleep(0.2)
            processes[engine.name] = Process(engine, models)
        rounds = {name: lambda p=p: len(sentences) / p.embed(sentences) for name, p in processes.items()}
        ones = {name: lambda p=p: 1000 * p.embed(one, repeat=20) for name, p in processes.items()}
        speeds, milliseconds = measure(rounds, args.rounds, "sentences/s"), measure(ones, args.rounds, "ms")
        for name, process in processes.items():
            times = {"speed": speeds[name], "milliseconds": milliseconds[name], "start": process.seconds}
            rows[name] |= times | {"peak": process.peak}
            process.close()
    content = {
        "date": time.strftime("%Y-%m-%d"),
        "machine": cpu_name(),
        "python": platform.python_version(),
        "versions": package_versions(),
        "threads": THREADS,
        "sentences": len(sentences),
        "rounds": args.rounds,
        "engines": rows,
    }
    if args.json:
        args.json.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8", newline="\n")
    print(table(content))


def table(content: dict[str, Any]) -> str:
    """Return the measurements as a Markdown table, with the fastest engine in the first row."""
    heads = ["engine", "sentences/s", "one, ms", "STSB test", "1 - cosine", "lowest cosine", "start, s"]
    lines = [[*heads, "peak MiB", "MB of the model"]]
    fastest_first = sorted(content["engines"].items(), key=lambda item: -item[1]["speed"])
    for name, row in fastest_first:
        has_cosines = "distance" in row  # with the embeddings of the same model in float32
        lines.append([
            name,
            f"{row['speed']:,.0f}",
            f"{row['milliseconds']:.2f}",
            f"{row['spearman']:.2f}",
            f"{row['distance']:.5f}" if has_cosines else "",
            f"{row['lowest_cosine']:.3f}" if has_cosines else "",
            f"{row['start']:.1f}",
            f"{row['peak'] or 0:,.0f}",
            f"{row['megabytes']:.1f}",
        ])  # fmt: skip
    return markdown_table(lines)
