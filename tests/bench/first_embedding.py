"""Measure what it takes to embed one sentence in a new environment: megabytes installed, and seconds.

    python tests/bench/first_embedding.py "numpy=compact@two-megabytes@VENV" "torch=tmft@data/tiny@OTHER_VENV"

Each argument is NAME=LIBRARY@MODEL@ENVIRONMENT: a key of LIBRARIES, the folder of a model, and a virtual
environment, in which the library is installed (tmft itself is found in this checkout). The megabytes are
those of the packages of the environment, without pip. The seconds are those of a whole process, from its
start until it has embedded a sentence and ended, and the time that it computed on a processor: the
shortest ones of --rounds rounds, in turn, with one thread. On a busy machine only the second time says much.
Files are in the cache of the system after the first round.
"""

import argparse
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT))
from tmft.formatting import markdown_table  # noqa: E402
from tmft.serving.export import folder_size  # noqa: E402

# Programs that embed a sentence by the model in the folder sys.argv[1], and print the number of dimensions.
LIBRARIES = {
    "compact": """
import sys
sys.path.append(sys.argv[1])
from encode import Encoder
print(Encoder(sys.argv[1]).encode(["A man plays a guitar."]).shape[1])
""",
    "tmft": """
import sys
from tmft import SentenceEncoder
print(SentenceEncoder.from_pretrained(sys.argv[1]).encode(["A man plays a guitar."]).shape[1])
""",
    "sentence-transformers": """
import sys
from sentence_transformers import SentenceTransformer
print(SentenceTransformer(sys.argv[1], device="cpu").encode(["A man plays a guitar."]).shape[1])
""",
    "fastembed": """
import sys
from fastembed import TextEmbedding
from fastembed.common.model_description import ModelSource, PoolingType
source = ModelSource(url="none", hf=None)
TextEmbedding.add_custom_model(
    "own", PoolingType.MEAN, True, source, dim=384, model_file="onnx/model.onnx"
)
model = TextEmbedding("own", specific_model_path=sys.argv[1], threads=1)
print(len(next(iter(model.embed(["A man plays a guitar."])))))
""",
    "model2vec": """
import sys
from model2vec import StaticModel
print(StaticModel.from_pretrained(sys.argv[1]).encode(["A man plays a guitar."]).shape[1])
""",
}
NOT_COUNTED = ("pip", "setuptools", "pkg_resources", "_distutils_hack")  # what a new environment has


def time_process(library: str, model: str, environment: Path) -> tuple[float, float]:
    """Return the seconds of a process that embeds a sentence, and its processor time.

    Raises RuntimeError if it fails.
    """
    variables = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONPATH": ""}
    if library == "tmft":
        variables["PYTHONPATH"] = str(ROOT)
    command = [str(environment / "bin/python"), "-c", LIBRARIES[library], model]
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, env=variables)
    seconds, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode or int(done.stdout.split()[-1]) < 1:
        raise RuntimeError(f"{library} with {model}: {done.stderr[-2000:]}")
    return seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def installed_size(environment: Path) -> int:
    """Return the total size in bytes of the packages in a virtual environment, without pip."""
    [folder] = environment.glob("lib/python3*/site-packages")
    entries = [entry for entry in folder.iterdir() if not entry.name.startswith(NOT_COUNTED)]
    return sum(folder_size(entry) if entry.is_dir() else entry.stat().st_size for entry in entries)


def main(argv: list[str] | None = None) -> None:
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("models", nargs="+", metavar="NAME=LIBRARY@MODEL@ENVIRONMENT")
    p.add_argument("--rounds", type=int, default=5)
    args = p.parse_args(argv)
    named = [text.partition("=")[::2] for text in args.models]
    models = {name: tuple(place.split("@")) for name, place in named}
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in models}
    for _ in range(args.rounds):
        for name, (library, model, environment) in models.items():
            seconds[name].append(time_process(library, model, Path(environment)))
    rows = [["", "MB of the model", "MB installed", "seconds", "processor seconds", ""]]
    for name, (_, model, environment) in models.items():
        sizes = [folder_size(Path(model)) / 1e6, installed_size(Path(environment)) / 1e6]
        times = [f"{min(values):.2f}" for values in zip(*seconds[name], strict=True)]
        rows.append([name, f"{sizes[0]:.1f}", f"{sizes[1]:,.0f}", *times, ""])
    print(markdown_table(rows), end="")


if __name__ == "__main__":
    main()
