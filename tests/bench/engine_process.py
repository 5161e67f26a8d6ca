"""Open a model in one engine and embed sentences: the process that engines.py starts for each engine.

    python engine_process.py NAME FOLDER OPTIONS

NAME is an entry of ENGINES; OPTIONS are JSON, and keyword arguments of its function. The process embeds one
sentence, writes a line, and then answers each line of standard input: {"sentences": the sentences to embed,
"repeat": how often, "file": where the embeddings are saved, or null} by {"seconds": the median time, "peak":
MiB of the largest memory so far, or null}. tmft is imported only where its own code is measured.
OMP_NUM_THREADS is the number of threads of every engine.

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


def open_tmft(folder: Path, precision: str) -> Encode:
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))
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


def open_onnx(folder: Path, file_name: str) -> Encode:
    """Open a graph of ONNX Runtime, which only knows batches of token ids.

    As in sentence-transformers, a batch has sentences of similar length. If the graph returns no embeddings,
    they are the means of the hidden states over the tokens. All are scaled to unit length.
    """
    import onnxruntime
    from tokenizers import Tokenizer

    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = THREADS
    graph = folder / "onnx" / file_name
    session = onnxruntime.InferenceSession(graph, settings, providers=["CPUExecutionProvider"])
    inputs = [node.name for node in session.get_inputs()]
    outputs = [node.name for node in session.get_outputs()]
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
            results = session.run(None, {name: batch[name] for name in inputs})
            if "sentence_embedding" in outputs:
                vectors = results[outputs.index("sentence_embedding")]  # (B, D)
            else:
                mask = batch["attention_mask"][:, :, None]
                vectors = (results[outputs.index("last_hidden_state")] * mask).sum(1)
            embeddings.append(vectors / np.linalg.norm(vectors, axis=1, keepdims=True))
        return np.concatenate(embeddings)[np.argsort(order)]

    return encode


ENGINES = {"tmft": open_tmft, "sentence-transformers": open_sentence_transformers, "onnx": open_onnx}


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
    os.environ |= {"HF_HUB_OFFLINE": "1"}
    name, folder, options = sys.argv[1:]
    answer_questions(name, Path(folder), json.loads(options))
