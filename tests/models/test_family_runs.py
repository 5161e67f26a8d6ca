"""Runs of the encoders with rotary positions and fused matrices: sweeps, interruptions, 8 bits."""

import json

import numpy as np
import pytest
import torch
from conftest import SENTENCES, fit_with_options, tiny_model, training_task

import train
from tmft.data import Examples
from tmft.distributed import single_process
from tmft.losses.cosine import CosineMSE
from tmft.runs.run_config import FineTuningRecipe
from tmft.sentence_encoder import SentenceEncoder
from tmft.serving.quantization import VNNI, set_encode_precision
from tmft.tasks import TASKS
from tmft.training.checkpointing import TrainingCheckpoint

SHAPES = {
    "modernbert": {"local_attention": 6, "attention_dropout": 0.2, "mlp_dropout": 0.2},
    "nomic_bert": {"hidden_dropout_prob": 0.2, "attention_probs_dropout_prob": 0.2},
    "gte": {"hidden_dropout_prob": 0.2, "attention_probs_dropout_prob": 0.2},
}
EXAMPLES = Examples((SENTENCES, SENTENCES[::-1]), [4.5, 2.0, 3.0, 0.5, 1.5])


def make(family: str, **changes) -> SentenceEncoder:
    return tiny_model(model_type=family, **SHAPES[family], **changes)


@pytest.mark.skipif(
    not any(torch.cpu.get_capabilities().get(name, False) for name in VNNI), reason="this CPU has no VNNI"
)
@pytest.mark.parametrize("family", SHAPES)
def test_embeddings_in_8_bits_are_near_those_in_float32(family):
    model = make(family)
    exact = model.encode(SENTENCES)
    set_encode_precision(model, "int8")
    assert not any(isinstance(module, torch.nn.Linear) for module in model.encoder.layers.modules())
    cosines = torch.cosine_similarity(torch.from_numpy(exact), torch.from_numpy(model.encode(SENTENCES)))
    assert 0.98 < cosines.min() < 1 - 1e-9


def fit(family: str, checkpoint: TrainingCheckpoint) -> tuple[dict, list[float]]:
    """A run of three epochs, or what is left of one: its weights and losses."""
    model = make(family, untrained=True)
    torch.manual_seed(0)
    recipe = FineTuningRecipe(epochs=3, batch_size=2, lr=1e-2, precision="fp32")
    task = training_task(TASKS["stsb"], CosineMSE(), EXAMPLES, EXAMPLES)
    alone = single_process(torch.device("cpu"))
    with checkpoint:
        epochs = list(fit_with_options(model, task, recipe, 0, alone, checkpoint))
    return model.state_dict(), [epoch.loss for epoch in epochs]


@pytest.mark.parametrize("family", SHAPES)
def test_a_run_that_is_stopped_ends_with_the_same_bits(family, tmp_path, monkeypatch):
    """With dropout, whose random numbers go on where they were."""
    weights, losses = fit(family, TrainingCheckpoint())
    should_save, calls = TrainingCheckpoint.should_save, [0]

    def stop_at_the_fourth_call(checkpoint, step=0):
        calls[0] += 1
        checkpoint.stop_requested = calls[0] == 4
        return should_save(checkpoint, step)

    monkeypatch.setattr(TrainingCheckpoint, "should_save", stop_at_the_fourth_call)
    alone = single_process(torch.device("cpu"))
    with pytest.raises(KeyboardInterrupt, match="the same command resumes it"):
        fit(family, TrainingCheckpoint(tmp_path / "state.pt", {}, alone))
    torch.manual_seed(99)  # what happens between must not matter
    found, again = fit(family, TrainingCheckpoint(tmp_path / "state.pt", {}, alone))
    assert again == losses
    assert all(torch.equal(found[name], weight) for name, weight in weights.items())


@pytest.mark.parametrize(("family", "init"), [("modernbert", "pretrained"), ("gte", "random")])
def test_each_run_of_a_sweep_is_a_model_that_can_be_loaded(family, init, tiny_data, tmp_path):
    make(family).save_pretrained(tmp_path / "model")
    words = ["--ckpt", tmp_path / "model", "--data", tiny_data, "--output-dir", tmp_path / "runs"]
    words += ["--run-name", "r", "--epochs", 1, "--batch-size", 2, "--precision", "fp32", "--layer", "0,2"]
    train.main([str(word) for word in [*words, *(["--init", "random"] if init == "random" else [])]])
    folders = sorted((tmp_path / "runs").glob("*/result.json"))
    layers = [json.loads(path.read_text())["settings"]["layer"] for path in folders]
    models = [SentenceEncoder.from_pretrained(path.parent) for path in folders]
    assert layers == [len(model.encoder.layers) for model in models] == [0, 2]
    assert all(np.isfinite(model.encode(SENTENCES)).all() for model in models)
