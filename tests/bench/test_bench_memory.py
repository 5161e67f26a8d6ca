"""The benchmark of memory runs with the code of today, on a tiny model and a few lines."""

import sys
from pathlib import Path

import numpy as np
import pytest

from tmft.sentence_encoder import SentenceEncoder

sys.path.insert(0, str(Path(__file__).resolve().parent))
TRAININGS = ["distillation", "distillation, again", "contrastive", "mlm", "clm"]


@pytest.fixture
def module():
    return pytest.importorskip("bench_memory")


def test_the_table_of_memory_has_a_line_for_each_stage_of_each_training(module, tiny_folder, monkeypatch):
    commands = []

    def stages(arguments, scratch):
        commands.append(arguments)
        text, triplets = ((scratch / name).read_text() for name in ("text.txt", "nli-triplets/train.tsv"))
        assert text.count("\n") == 30 and triplets.count("\n") == 31 and triplets.count("\t") == 2 * 31
        yield "reading", 2.0, 300.0, 200.0, 100.0
        yield "step 1", 1.0, 1300.0, 1200.0, 100.0

    monkeypatch.setattr(module, "run_process", stages)
    lines = [*module.measurements(tiny_folder, 1, 30, TRAININGS)]
    titles = [line.strip() for line in lines if "30 lines" in line]
    assert titles == [f"{name}, 30 lines" for name in TRAININGS]
    assert [line.split() for line in lines[2:4]] == [
        ["reading", "2.0", "300", "200", "100"],
        ["step", "1", "1.0", "1,300", "1,200", "100"],
    ]
    assert [command[command.index("--task") + 1] for command in commands] == [
        "distillation", "distillation", "nli", "mlm", "clm"
    ]  # fmt: skip


def test_random_vectors_are_an_npy_file_with_a_row_for_each_line(module, tiny_folder, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "EMBEDDING_BLOCK", 4)
    (tmp_path / "text.txt").write_text("a\n" * 10)
    model = SentenceEncoder.from_pretrained(tiny_folder)
    module.random_embeddings(model, tmp_path / "text.txt", tmp_path / "v.npy", None)
    vectors = np.load(tmp_path / "v.npy")
    assert vectors.shape == (10, model.dimensions) and vectors.dtype == np.float32
    assert len(np.unique(vectors)) > 9 * model.dimensions
