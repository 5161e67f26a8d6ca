"""Export a model as an OpenVINO graph (IR), in float or in 8 bits, and run it with OpenVINO.

The graph is made from the ONNX graph of tmft/export/onnx.py, and has its inputs and outputs. The packages
openvino and nncf are imported only when they are needed.
"""

import os
import shutil
from collections.abc import Sequence
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import numpy as np
import torch

from tmft.export.graph_encoder import OUTPUTS, Batch, GraphEncoder, find_graph
from tmft.export.onnx import (
    ONNX_FILE,
    calibration_batches,
    require_package,
    suppress_exporter_warnings,
    write_onnx,
)
from tmft.sentence_encoder import SentenceEncoder

# Names of the files, as sentence-transformers gives them; the weights are beside each graph, in a .bin file.
OPENVINO_FILE = "openvino/openvino_model.xml"
QUANTIZED_FILE = "openvino/openvino_model_qint8_quantized.xml"


def write_openvino(model: SentenceEncoder, folder: Path, dtype: torch.dtype = torch.float32) -> None:
    """Write a model into a folder as save_pretrained does, but with an OpenVINO graph as its weights.

    dtype: type of the weights in the file, float32 or float16. OpenVINO computes in another one if it is told
    to, and on some CPUs in bfloat16 by default.
    """
    openvino = require_package("openvino", "openvino")
    write_onnx(model, folder)
    (folder / OPENVINO_FILE).parent.mkdir()
    graph = openvino_core(openvino).read_model(folder / ONNX_FILE)
    openvino.save_model(graph, folder / OPENVINO_FILE, compress_to_fp16=dtype == torch.float16)
    shutil.rmtree((folder / ONNX_FILE).parent)


def openvino_core(openvino):
    """Return an object that reads graphs into memory, so that their files can be removed afterwards."""
    core = openvino.Core()
    core.set_property({"ENABLE_MMAP": False})
    return core


def quantize_openvino(folder: Path, dtype: str, calibration_lines: Sequence[str]) -> None:
    """Replace the float32 graph in a folder by one with weights and inputs of linear maps in 8 bits.

    calibration_lines: sentences that determine the scales. Weights have one scale per output.
    SmoothQuant, which nncf applies by default, is switched off: it left the embeddings of all-MiniLM-L6-v2
    four times as far from those in float32 (docs/speed.md).
    """
    openvino = require_package("openvino", "openvino")
    # Without this variable nncf reports to its makers, over the network, that it was used.
    os.environ.setdefault("NNCF_CI", "1")
    nncf = require_package("nncf", "openvino")
    batches = calibration_batches(folder, calibration_lines)
    graph = openvino_core(openvino).read_model(folder / OPENVINO_FILE)
    parameters = nncf.AdvancedQuantizationParameters(
        smooth_quant_alphas=nncf.AdvancedSmoothQuantParameters(convolution=-1, matmul=-1)
    )
    with suppress_exporter_warnings(), redirect_stdout(StringIO()):  # progress bars
        quantized = nncf.quantize(
            graph,
            nncf.Dataset(batches),
            model_type=nncf.ModelType.TRANSFORMER,
            subset_size=len(batches),
            advanced_parameters=parameters,
        )
    openvino.save_model(quantized, folder / QUANTIZED_FILE, compress_to_fp16=False)
    for suffix in (".xml", ".bin"):
        (folder / OPENVINO_FILE).with_suffix(suffix).unlink()


class OpenVINOEncoder(GraphEncoder):
    """A model that runs in OpenVINO on the CPU. folder: a folder with one graph in its folder openvino.

    num_threads: number of threads; None lets OpenVINO choose.
    """

    def __init__(self, folder: Path, precision: str = "f32", num_threads: int | None = None):
        super().__init__(folder)
        openvino = require_package("openvino", "openvino")
        settings = {"INFERENCE_PRECISION_HINT": precision, "INFERENCE_NUM_THREADS": num_threads or 0}
        path = find_graph(folder, "openvino/*.xml")
        self.graph = openvino.Core().compile_model(path, "CPU", settings)

    def run(self, batch: Batch) -> np.ndarray:
        """Return the embeddings of a batch, (B, D) float32."""
        return self.graph(batch)[OUTPUTS[1]]
