"""Every argument of the interface in Python is checked, its type and its range, before any work begins."""

import inspect
import math
import re
from dataclasses import fields

import numpy as np
import pytest
from conftest import PAIRS, tiny_model

import tmft.datasets.given_examples
import tmft.students.distill
from tmft import InputError, Recipe, SentenceEncoder, distill, fine_tune
from tmft.callbacks import Callback
from tmft.checkpoints.model_folder import ModelFolder
from tmft.losses.objectives import OBJECTIVES
from tmft.runs.fine_tuning import NAMED_SETTINGS
from tmft.runs.run_config import FineTuningConfig, FineTuningRecipe

ROWS = [(a, b, float(score)) for a, b, score in (line.split("\t") for line in PAIRS)]
NO_NUMBER = [True, "3", [1], math.nan, math.inf, -math.inf, {}]
NO_COUNT = [*NO_NUMBER, 1.5, 0, -1, 10**5000]
NO_RATE = [*NO_NUMBER, -0.1]
NO_TEXT = [True, 1, b"mean", ["mean"]]
NO_SEED = [True, 1.5, "1", None, -1, 2**63, 10**400]
NO_FLAG = [1, 0, "yes", None]
NO_EXAMPLES = [5, True, 0.5, len]

REFUSED_BY_FINE_TUNE = {
    "model": [5, None, ["a"], b"a", Recipe()],
    "train": [*NO_EXAMPLES, None],
    "dev": NO_EXAMPLES,
    "test": NO_EXAMPLES,
    "score_range": [
        *([(5, 0), (1, 1), "05", 5, None, (0,), (0, 1, 2), (False, True), ("0", "5")]),
        *([(0, math.nan), (-math.inf, 5), np.array([5.0, 0.0])]),
    ],
    "objective": [*NO_TEXT, None, "cosine", "distillation"],
    "metric": [*NO_TEXT, "rho"],
    "layer": [True, 1.5, -1, 10**10, "", "x", "1,", "3-1", [], [1, -1], [1, 1.0], [[1]], np.array([0.5])],
    "seeds": [*NO_SEED, 0, 10**9, [], *([seed] for seed in NO_SEED), [0, 0], np.array([1, 1]), {0}],
    "callbacks": [None, 5, Callback(), [5], [Callback], "x"],
    "output_dir": [5, True, b"runs", ""],
    "device": [None, 5, "gpu7", ""],
    # FineTuningRecipe
    "epochs": [*NO_COUNT, None],
    "batch_size": [*NO_COUNT, None],
    "lr": [*NO_RATE, None],
    "weight_decay": [*NO_RATE, None],
    "warmup_ratio": [*NO_RATE, None, 1.5],
    "max_grad_norm": [*NO_RATE, None],
    "precision": [*NO_TEXT, None, "fp8"],
    "optimizer": [*NO_TEXT, None, "adamv"],
    "lr_schedule": [*NO_TEXT, None, "cosine"],
    "mini_batch_size": NO_COUNT,
    "task_sampling": [*NO_TEXT, None, "jointly"],
    "gradient_surgery": [*NO_TEXT, None, "pc"],
    "freeze_layers": [*NO_NUMBER, 1.5, -2],
    "all_layers": [*NO_TEXT, "meen"],
    "matryoshka_dims": [5, "8", (8, 3), (0, 3), (3, 3), (-1,), (True,), (1.5,), ("8",)],
    "quantization": [*NO_TEXT, "int3"],
    "cuda_graphs": NO_FLAG,
    # FineTuningConfig
    "init": [*NO_TEXT, None, "randomly"],
    "keep_layers": [1, "0,1", (), (1, 0), (-1,), (True,), (0.0, 1.0)],
    "pooling": [*NO_TEXT, "mena", "mean+", ""],
    "token_weights": [*NO_TEXT, "idff", ""],
    "projection": NO_COUNT,
    "max_length": [*NO_COUNT, 2],
    "train_fraction": [*NO_RATE, None, 0, 1.1],
    # the objectives
    "temperature": [*NO_RATE, None, 0, 11],
    "symmetric": NO_FLAG,
    "mask_duplicate_anchors": NO_FLAG,
    "dropout": [*NO_RATE, None, 1],
    "dropout_after_features": NO_FLAG,
    "rescale_to_labels": NO_FLAG,
}
REFUSED_BY_DISTILL = {
    "teacher": [None, 5, ["a"], b"a", SentenceEncoder],
    "lines": [5, True, "one text", [5], ["a", None], ["\ud800"]],
    "layers": [*NO_COUNT, None, 5],  # the teacher has four
    "hidden_size": [*NO_COUNT, 31, 33, 1000],
    "vocab_size": [*NO_COUNT, 10**8],
    "recipe": [None, {}, {"epochs": 1}, Recipe],
    "seed": NO_SEED,
    "quantization": [*NO_TEXT, "int3"],
    "embedding_size": [*NO_COUNT, 1, 1000],
    "second_teacher": [5, ["a"], b"a", SentenceEncoder],
}


def objective_with(setting: str) -> str:
    """The name of the first objective that has a hyperparameter, or cosine_mse."""
    configs = {name: objective.config_class for name, objective in OBJECTIVES.items()}
    names = (name for name, config in configs.items() if config and setting in vars(config)["__match_args__"])
    return next(names, "cosine_mse")


MODEL = tiny_model()
LINES = ["a dog", "a cat", "a man", "two men"]
# Function -> what a call of it needs, and values of each of its arguments that it refuses.
CALLS = {
    fine_tune: ({"model": "folder", "train": ROWS}, REFUSED_BY_FINE_TUNE),
    distill: ({"teacher": MODEL, "lines": LINES}, REFUSED_BY_DISTILL),
}
REFUSED = [
    pytest.param(call, name, value, id=f"{call.__name__}-{name}-{n}")
    for call, (_, table) in CALLS.items()
    for name, values in table.items()
    for n, value in enumerate(values)
]
TEXTS = {"lines"}  # of which a message names the sentence, and may be a TypeError


@pytest.fixture
def no_work(monkeypatch):
    """Lets nothing be read, loaded, copied or embedded."""

    def begin(*_, **__):
        pytest.fail("work began before all arguments were checked")

    monkeypatch.setattr(ModelFolder, "open", begin)
    monkeypatch.setattr(SentenceEncoder, "from_pretrained", begin)
    monkeypatch.setattr(SentenceEncoder, "save_pretrained", begin)
    monkeypatch.setattr(SentenceEncoder, "encode", begin)
    monkeypatch.setattr(tmft.runs.fine_tuning, "collect_examples", begin)
    monkeypatch.setattr(tmft.students.distill, "deepcopy", begin)
    monkeypatch.setattr(tmft.students.distill, "read_all_splits", begin)


def test_work_begins_with_arguments_that_are_right(no_work):
    with pytest.raises(pytest.fail.Exception, match="work began"):
        fine_tune("folder", ROWS)


def test_the_tables_have_every_argument():
    settings = {field.name for config in (FineTuningRecipe, FineTuningConfig) for field in fields(config)}
    configs = {loss.config_class for loss in OBJECTIVES.values() if not loss.needs_teacher} - {None}
    hyperparameters = {field.name for config in configs for field in fields(config)}
    parameters = inspect.signature(fine_tune).parameters.keys() - {"settings"}
    assert REFUSED_BY_FINE_TUNE.keys() == (settings - NAMED_SETTINGS) | hyperparameters | parameters
    assert REFUSED_BY_DISTILL.keys() == inspect.signature(distill).parameters.keys() - {"settings"}


@pytest.mark.parametrize(("call", "name", "value"), REFUSED)
def test_an_argument_is_refused_by_its_name_before_any_work(call, name, value, no_work):
    needed, _ = CALLS[call]
    objective = {"objective": objective_with(name)} if call is fine_tune else {}
    with pytest.raises((InputError, TypeError) if name in TEXTS else InputError) as error:
        call(**needed | objective | {name: value})
    message = str(error.value)
    assert "\n" not in message and len(message) < 700
    assert name in TEXTS or re.search(rf"\b{name}\b", message)
