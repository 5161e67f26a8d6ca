"""Convert an exported ONNX graph to 8 bits: dynamic or static quantization with ONNX Runtime.

The matrices of linear maps and the word embeddings become integers of 8 bits, each output of a map with a
scale of its own. What a map multiplies becomes integers, too. Dynamic quantization determines their scale
anew in each batch; static quantization measures it once, with sentences to calibrate, and stores it. All
other operations stay in float32.

Source: Jacob et al. 2017, arXiv:1712.05877.
"""

from collections.abc import Sequence
from pathlib import Path

from tmft.serving.graph_encoder import Batch, GraphTokenizer
from tmft.serving.onnx import MAX_FILE_SIZE, ONNX_FILE, require_package, suppress_exporter_warnings

# Names of the files, as sentence-transformers gives them. Weights from -127 to 127 are fast on CPUs with VNNI
# instructions and on ARM; on older CPUs sums of their products overflow, and those from 0 to 255 do not.
DYNAMIC_FILES = {"int8": "onnx/model_qint8_avx512_vnni.onnx", "uint8": "onnx/model_quint8_avx2.onnx"}
STATIC_FILES = {"int8": "onnx/model_qint8_static.onnx", "uint8": "onnx/model_quint8_static.onnx"}
OPERATORS = ["MatMul", "Gemm", "Gather"]  # linear maps, and the look-up of word embeddings


def quantize_onnx(folder: Path, dtype: str, calibration_lines: Sequence[str] = ()) -> None:
    """Replace the float32 graph in a folder by one in 8 bits."""
    quantization = require_package("onnxruntime.quantization", "onnx")
    before, after = folder / ONNX_FILE, folder / (STATIC_FILES if calibration_lines else DYNAMIC_FILES)[dtype]
    weight_type = quantization.QuantType.QInt8 if dtype == "int8" else quantization.QuantType.QUInt8
    parts = sorted(before.parent.iterdir())  # the graph, and its weights if they are in a file of their own
    options = {"per_channel": True, "weight_type": weight_type, "op_types_to_quantize": OPERATORS}
    options["use_external_data_format"] = sum(path.stat().st_size for path in parts) > MAX_FILE_SIZE
    with suppress_exporter_warnings():
        if calibration_lines:
            # Products inside attention, of two inputs that vary, stay in float32, and so do all results.
            extra = {"MatMulConstBOnly": True, "OpTypesToExcludeOutputQuantization": OPERATORS}
            reader = BatchReader(calibration_batches(folder, calibration_lines))
            types = {"activation_type": weight_type, "extra_options": extra}
            quantization.quantize_static(before, after, reader, **types, **options)
        else:
            quantization.quantize_dynamic(before, after, **options)
    for path in parts:
        path.unlink()


def calibration_batches(folder: Path, lines: Sequence[str]) -> list[Batch]:
    """Return the inputs of a graph for lines, sentences to calibrate, one at a time."""
    tokenizer = GraphTokenizer(folder)
    return [tokenizer.padded_batch([ids]) for ids in tokenizer.token_ids(lines)]


class BatchReader:
    """Batches in the form that ONNX Runtime reads for calibration (CalibrationDataReader)."""

    def __init__(self, batches: list[Batch]):
        self.batches = iter(batches)

    def get_next(self) -> Batch | None:
        """Return the next batch; None after the last one."""
        return next(self.batches, None)
