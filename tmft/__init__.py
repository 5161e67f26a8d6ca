"""Truncated model fine-tuning: sentence embeddings from the first layers of a pre-trained model.

The names in __all__, with the registries among them, are the interface of the library; everything else may
change. Each is imported when it is used for the first time, so that `import tmft` takes no time.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tmft.callbacks import EpochResult as EpochResult
    from tmft.cka import linear_cka as linear_cka
    from tmft.data import Examples as Examples
    from tmft.embedding.token_weights import TOKEN_WEIGHTS as TOKEN_WEIGHTS
    from tmft.errors import InputError as InputError
    from tmft.loop import Recipe as Recipe
    from tmft.loop import fit as fit
    from tmft.losses.objectives import OBJECTIVES as OBJECTIVES
    from tmft.metrics import METRICS as METRICS
    from tmft.models.families import FAMILIES as FAMILIES
    from tmft.pooling import POOLINGS as POOLINGS
    from tmft.runs.fine_tuning import FineTuningResult as FineTuningResult
    from tmft.runs.fine_tuning import fine_tune as fine_tune
    from tmft.runs.predictor import Predictor as Predictor
    from tmft.sentence_encoder import SentenceEncoder as SentenceEncoder
    from tmft.students.distill import distill as distill
    from tmft.tasks import TASKS as TASKS
    from tmft.tasks import Task as Task
    from tmft.training_free.postprocessing import POSTPROCESSING as POSTPROCESSING
    from tmft.training_task import TrainingTask as TrainingTask

__version__ = "0.30.0"

# Name -> the module that defines it.
MODULES = {
    "SentenceEncoder": "sentence_encoder",
    "InputError": "errors",
    # fine-tuning
    "fine_tune": "runs.fine_tuning",
    "FineTuningResult": "runs.fine_tuning",
    "Recipe": "loop",
    "fit": "loop",
    "TrainingTask": "training_task",
    "EpochResult": "callbacks",
    "Examples": "data",
    "Task": "tasks",
    # other uses of a model
    "Predictor": "runs.predictor",
    "distill": "students.distill",
    "linear_cka": "cka",
    # registries: to add something of your own is a row in one of them
    "TASKS": "tasks",
    "OBJECTIVES": "losses.objectives",
    "METRICS": "metrics",
    "POOLINGS": "pooling",
    "TOKEN_WEIGHTS": "embedding.token_weights",
    "POSTPROCESSING": "training_free.postprocessing",
    "FAMILIES": "models.families",
}
__all__ = [*MODULES]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    """Import a name of the interface."""
    if name not in MODULES:
        raise AttributeError(f"module 'tmft' has no attribute {name!r}")
    try:
        return getattr(import_module(f"tmft.{MODULES[name]}"), name)
    except ModuleNotFoundError:
        from tmft.io.files import missing_packages

        if missing := missing_packages(name):
            raise ImportError(missing) from None
        raise


def __dir__() -> list[str]:
    return [*globals(), *__all__]
