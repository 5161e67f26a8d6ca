"""Benchmark of encoding: sentences per second of every engine in one run, and the score of each.

The engines are sentence-transformers, ONNX Runtime, OpenVINO, which sentence-transformers recommends on CPUs,
and tmft. OpenVINO's packages are not in requirements-dev.txt: pip install openvino nncf.
"""

import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from bench import ROOT, measure
from bench_train import fastest, machine_rates, matrix_entries, quiet_transformers, rate

from tmft import SentenceEncoder
from tmft.data import read_examples
from tmft.datasets.task_lookup import get_task
from tmft.errors import InputError
from tmft.metrics import spearman
from tmft.serving.quantization import set_encode_precision

CALIBRATION = 300  # sentences with which the int8 model of OpenVINO is calibrated


def bench_encode(args) -> None:
    """Time every engine; then compare scores and embeddings with those in float32."""
    task = get_task("stsb", data=str(args.data))
    first, second = read_examples(task, "train").texts
    sentences = list(dict.fromkeys(first))[: args.sentences]  # tmft embeds equal ones once
    ours, truncated, peers = {}, {}, others(args.ckpt, second[:CALIBRATION])
    for precision in ("fp32", "bf16", "int8"):
        models = [SentenceEncoder.from_pretrained(args.ckpt, layer=layer) for layer in (None, args.layer)]
        try:
            for model in models:
                set_encode_precision(model, precision)
        except InputError as error:
            print(f"tmft {precision} is skipped: {error}")
            continue
        ours[f"tmft {precision}"], truncated[f"tmft {precision}, l = {args.layer}"] = models
    peers |= {name: model.encode for name, model in ours.items()}

    encoders = peers | {name: model.encode for name, model in truncated.items()}
    rounds = {name: rate(partial(encode, sentences), len(sentences)) for name, encode in encoders.items()}
    print(f"encoding {len(sentences)} distinct sentences, with all layers unless a line says l = ...")
    rates = [machine_rates()[:2]]
    medians = measure(rounds, args.rounds, "sentences/s", *ours)
    rates.append(machine_rates()[:2])
    fp32, bf16 = (max(pair) for pair in zip(*rates, strict=True))
    tokens, entries = sum(map(len, ours["tmft fp32"].tokenize(sentences))), matrix_entries(ours["tmft fp32"])
    gflop = 2e-9 * tokens * entries
    int8 = integer_rate()
    print(f"the machine, now: {fp32:.0f} GFLOP/s in fp32, {bf16:.0f} in bf16, {int8:.0f} in int8")
    print(f"GFLOP of matrix products: {gflop:.0f}")
    for name, peak in zip(("tmft fp32", "tmft bf16", "tmft int8"), (fp32, bf16, int8), strict=True):
        if name in medians:
            limit = len(sentences) * peak / gflop
            print(
                f"{name}: at most {limit:.0f} sentences/s, of which {medians[name] / limit:.0%} are reached"
            )
    try:
        test = read_examples(task, "test")
    except InputError:
        return
    print(f"Spearman x 100 of {len(test)} pairs of test; mean of 1 - cosine with the embeddings in fp32")
    exact = torch.from_numpy(ours["tmft fp32"].encode(test.sentences))
    for name, encode in peers.items():
        embeddings = torch.from_numpy(np.asarray(encode(test.sentences), dtype=np.float32))
        cosines = torch.cosine_similarity(*embeddings.chunk(2))
        score = 100 * spearman(cosines.numpy(), np.array(test.labels))
        distance = 1 - torch.cosine_similarity(embeddings, exact).mean().item()
        print(f"{name:44} {score:6.2f} {max(distance, 0):9.6f}")


def bench_one(args) -> None:
    """Time one sentence at a time, as a server gets them: the medians of 20 calls in each round."""
    sentence = ["A man plays a guitar on the stage tonight."]  # 12 tokens in both models
    calibration = read_examples(get_task("stsb", data=str(args.data)), "train").texts[1][:CALIBRATION]
    peers = {name: encode for name, encode in others(args.ckpt, calibration).items() if "128" not in name}
    with ExitStack() as constant:
        for ckpt, name in ((args.ckpt, "tmft"), (ROOT / "data/tiny", "tmft, data/tiny")):
            peers[f"{name} fp32, weights may change"] = SentenceEncoder.from_pretrained(ckpt).encode
            for precision in ("fp32", "bf16", "int8"):
                model = SentenceEncoder.from_pretrained(ckpt)
                with suppress(InputError):  # this CPU cannot compute in the precision
                    set_encode_precision(model, precision)
                    constant.enter_context(model.constant_weights())
                    peers[f"{name} {precision}"] = model.encode
        rounds = {name: partial(median_milliseconds, encode, sentence) for name, encode in peers.items()}
        measure(rounds, args.rounds, "ms", "tmft fp32", "tmft, data/tiny fp32")


def median_milliseconds(encode: Callable, sentences: list[str]) -> float:
    """Return the median time of 20 calls of an encoder, in milliseconds."""
    times = []
    for _ in range(20):
        start = time.perf_counter()
        encode(sentences)
        times.append(time.perf_counter() - start)
    return 1000 * statistics.median(times)


def integer_rate() -> float:
    """Return the GFLOP/s of the fastest product of 8-bit integers with sizes as in a batch."""
    rates = []
    for rows, columns in ((1536, 384), (384, 1536), (3072, 768)):
        x, w = (torch.randint(-127, 128, (n, columns), dtype=torch.int8) for n in (1856, rows))
        rates.append(fastest(lambda x=x, w=w: torch._int_mm(x, w.T), 2 * 1856 * rows * columns))
    return max(rates)


def others(ckpt, calibration: list[str]) -> dict[str, Callable]:
    """Return the engines that are installed: name -> function from sentences to embeddings."""
    from sentence_transformers import SentenceTransformer

    fp32 = SentenceTransformer(str(ckpt), device="cpu")
    bf16 = SentenceTransformer(str(ckpt), device="cpu", model_kwargs={"dtype": torch.bfloat16})

    def in_batches_of_128(model):
        return lambda sentences: model.encode(sentences, batch_size=128)

    engines = {
        "sentence-transformers, batch 32 (default)": fp32.encode,
        "sentence-transformers, batch 128": in_batches_of_128(fp32),
        "sentence-transformers bf16, batch 32": bf16.encode,
        "sentence-transformers bf16, batch 128": in_batches_of_128(bf16),
    }
    if not (find_spec("onnxruntime") and find_spec("onnx")):
        print("ONNX Runtime and OpenVINO are skipped: they need the packages onnx and onnxruntime")
        return engines
    tokenize, file = exported(ckpt)
    quantized = file.with_name("int8.onnx")
    from onnxruntime.quantization import QuantType, quantize_dynamic

    quantize_dynamic(file, quantized, weight_type=QuantType.QInt8)
    engines["ONNX Runtime fp32, batch 32"] = sorted_batches(tokenize, 32, onnx_session(file))
    engines["ONNX Runtime fp32, batch 128"] = sorted_batches(tokenize, 128, onnx_session(file))
    engines["ONNX Runtime int8 (dynamic), batch 32"] = sorted_batches(tokenize, 32, onnx_session(quantized))
    if not (find_spec("openvino") and find_spec("nncf")):
        print("OpenVINO is skipped: it needs the packages openvino and nncf")
        return engines
    for precision in ("fp32", "bf16", "int8"):
        run = openvino_model(file, precision, tokenize, calibration)
        engines[f"OpenVINO {precision}, batch 32"] = sorted_batches(tokenize, 32, run)
    return engines


def exported(ckpt) -> tuple[Callable, Path]:
    """Return a function from sentences to a padded batch, and the ONNX file of a model with mean pooling.

    torch exports the model of transformers, because the export of sentence-transformers needs transformers 4.
    """
    transformers = quiet_transformers()

    class Mean(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = transformers.AutoModel.from_pretrained(ckpt, attn_implementation="eager").eval()

        def forward(self, input_ids, attention_mask):
            hidden = self.model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
            mask = attention_mask[:, :, None].float()
            return (hidden * mask).sum(1) / mask.sum(1)

    tokenizer, names = transformers.AutoTokenizer.from_pretrained(ckpt), ["input_ids", "attention_mask"]

    def tokenize(sentences) -> dict:
        batch = tokenizer(sentences, padding=True, truncation=True, max_length=256, return_tensors="pt")
        return {name: batch[name] for name in names}

    file = Path(tempfile.mkdtemp()) / "model.onnx"
    axes = {name: {0: "sentences", 1: "tokens"} for name in names}
    example = tuple(tokenize(["A man plays.", "A woman sings a song."]).values())
    torch.onnx.export(Mean(), example, str(file), input_names=names, dynamic_axes=axes, dynamo=False)
    return tokenize, file


def sorted_batches(tokenize: Callable, size: int, run: Callable) -> Callable:
    """Return a function that encodes in batches of similar length, as sentence-transformers does."""

    def encode(sentences):
        order = sorted(range(len(sentences)), key=lambda index: -len(sentences[index]))
        embeddings = [None] * len(sentences)
        for first in range(0, len(order), size):
            indices = order[first : first + size]
            batch = tokenize([sentences[index] for index in indices])
            vectors = run({name: tensor.numpy() for name, tensor in batch.items()})
            for index, vector in zip(indices, vectors, strict=True):
                embeddings[index] = vector
        return np.stack(embeddings)

    return encode


def onnx_session(file: Path) -> Callable:
    """Return a function that runs an ONNX file on a batch."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    return lambda batch: session.run(None, batch)[0]


def openvino_model(file: Path, precision: str, tokenize: Callable, calibration: list[str]) -> Callable:
    """Return a function that runs an ONNX file, compiled by OpenVINO; nncf quantizes it for int8."""
    import openvino

    core = openvino.Core()
    model = core.read_model(file)
    if precision == "int8":
        import nncf

        batches = [{name: t.numpy() for name, t in tokenize([text]).items()} for text in calibration]
        model_type = nncf.ModelType.TRANSFORMER
        model = nncf.quantize(model, nncf.Dataset(batches), model_type=model_type, subset_size=len(batches))
    hint = {"fp32": "f32", "bf16": "bf16", "int8": "f32"}[
        precision
    ]  # of the products that stay floating point
    settings = {"INFERENCE_PRECISION_HINT": hint, "INFERENCE_NUM_THREADS": torch.get_num_threads()}
    compiled = core.compile_model(model, "CPU", settings)
    return lambda batch: compiled(batch)[0]
