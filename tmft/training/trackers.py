"""Trackers: callbacks that log a run to TensorBoard, Weights & Biases or MLflow.

Like transformers' Trainer they log the mean loss since the last entry, the learning rate and the epoch, every
LOG_EVERY steps and after each epoch, and then also all metrics on dev. Each package is imported only if its
tracker is asked for.
"""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tmft.callbacks import LOG_EVERY, Callback, LoopState
from tmft.errors import InputError, check_choice, short_repr


class Tracker(Callback):
    """Base class of the trackers: decides what is logged and when; a subclass opens a run and writes to it.

    There is one entry for each step that is logged. So a resumed run, which repeats the steps since its last
    checkpoint, can leave out those that the service has.
    It is called before Checkpointing, so that a checkpoint knows what was logged before it was written.
    folder: the run folder, whose name is that of the run. settings: all settings of the run.
    """

    package: str  # to import, and to install
    run_id: str | None = None  # by which the service knows the run

    def __init__(self, folder: Path, settings: dict[str, Any]):
        self.folder, self.settings = folder, settings
        self.logged_loss, self.logged_examples = 0.0, 0  # of the epoch in progress
        self.is_open = False

    def begin_run(self, step: int) -> None:
        """Begin the run, or go on with run_id. step: the first one to be logged."""
        raise NotImplementedError

    def write(self, values: dict[str, float], step: int) -> None:
        """Add an entry to the run, under the names that the Trainer has: loss, eval_spearman, ..."""
        raise NotImplementedError

    def end_run(self) -> None:
        """End the run."""
        raise NotImplementedError

    def on_step_end(self, state: LoopState) -> None:
        if state.steps.step % LOG_EVERY == 0 and state.steps.step < len(state.steps):
            self.log(self.training_values(state), state.steps.step, state)

    def on_epoch_end(self, state: LoopState) -> None:
        self.last_values = self.training_values(state)
        self.logged_loss, self.logged_examples = 0.0, 0

    def on_evaluate(self, state: LoopState) -> None:
        dev = state.finished_epochs[-1].dev
        scores = {"": dev} | {f"{task}_": metrics for task, metrics in dev.get("tasks", {}).items()}
        values = {
            f"eval_{task}{name}": value
            for task, metrics in scores.items()
            for name, value in metrics.items()
            if isinstance(value, float)  # not the number of pairs
        }
        self.log(self.last_values | values, 0, state)  # step 0 of the next epoch

    def on_train_end(self, state: LoopState) -> None:
        if self.is_open:
            self.end_run()

    def training_values(self, state: LoopState) -> dict[str, float]:
        """Return the mean loss since the last entry, the learning rate and the number of epochs so far."""
        loss, examples = state.total_loss.item(), state.num_examples
        mean = (loss - self.logged_loss) / max(examples - self.logged_examples, 1)
        self.logged_loss, self.logged_examples = loss, examples
        epochs = state.epoch - 1 + examples / state.steps.num_examples
        lr = float(state.scheduler.get_last_lr()[0])
        return {"loss": mean, "learning_rate": lr, "epoch": epochs}

    def log(self, values: dict[str, float], step_of_epoch: int, state: LoopState) -> None:
        """Write an entry; the run begins before the first one."""
        step = len(state.finished_epochs) * len(state.steps) + step_of_epoch
        if not self.is_open:
            self.begin_run(step)
            self.is_open = True
        self.write(values, step)

    def state_dict(self) -> dict[str, Any]:
        return {
            "run_id": self.run_id,
            "logged_loss": self.logged_loss,
            "logged_examples": self.logged_examples,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if not state:  # the run began without this tracker
            return
        types = {"run_id": str | None, "logged_loss": float, "logged_examples": int}
        are_right = (isinstance(state.get(name), kind) for name, kind in types.items())
        if state.keys() != types.keys() or not all(are_right):
            raise ValueError(f"{type(self).__name__} has {short_repr(state)}")
        self.run_id, self.logged_loss = state["run_id"], state["logged_loss"]
        self.logged_examples = state["logged_examples"]


def group_names(values: dict[str, float]) -> dict[str, float]:
    """Return the values under the names that the Trainer has in TensorBoard and Weights & Biases.

    >>> group_names({"loss": 0.5, "eval_spearman": 0.8})
    {'train/loss': 0.5, 'eval/spearman': 0.8}
    """
    return {
        f"eval/{name.removeprefix('eval_')}" if name.startswith("eval_") else f"train/{name}": value
        for name, value in values.items()
    }


class TensorBoard(Tracker):
    """Writes an events file into the run folder: `tensorboard --logdir runs` shows all runs."""

    package = "tensorboard"

    def begin_run(self, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # purge_step hides what a process that was killed had logged after its last checkpoint.
        self.writer = SummaryWriter(str(self.folder), purge_step=step)

    def write(self, values: dict[str, float], step: int) -> None:
        for name, value in group_names(values).items():
            self.writer.add_scalar(name, value, step)

    def end_run(self) -> None:
        self.writer.close()


class WandB(Tracker):
    """Logs to Weights & Biases, which is set by its own variables, such as WANDB_PROJECT."""

    package = "wandb"

    def begin_run(self, step: int) -> None:
        import wandb

        self.run = wandb.init(
            name=self.folder.name, config=self.settings, id=self.run_id, resume="allow", reinit="create_new"
        )
        self.run_id = self.run.id

    def write(self, values: dict[str, float], step: int) -> None:
        if step >= self.run.step:  # a resumed run is at the step after its last entry
            self.run.log({**group_names(values), "train/global_step": step}, step=step)

    def end_run(self) -> None:
        self.run.finish()


class MLflow(Tracker):
    """Logs to MLflow, which is set by its own variables, such as MLFLOW_TRACKING_URI."""

    package = "mlflow"

    def begin_run(self, step: int) -> None:
        import mlflow

        is_nested = mlflow.active_run() is not None
        run = mlflow.start_run(run_id=self.run_id, run_name=self.folder.name, nested=is_nested)
        self.run_id = run.info.run_id
        mlflow.log_params({name: str(value)[:500] for name, value in self.settings.items()})
        history = mlflow.MlflowClient().get_metric_history(self.run_id, "loss")
        self.last_step = max((entry.step for entry in history), default=-1)

    def write(self, values: dict[str, float], step: int) -> None:
        import mlflow

        if step > self.last_step:
            mlflow.log_metrics(values, step=step)

    def end_run(self) -> None:
        import mlflow

        mlflow.end_run()


TRACKERS: dict[str, type[Tracker]] = {"tensorboard": TensorBoard, "wandb": WandB, "mlflow": MLflow}


def check_trackers(trackers: Sequence[str]) -> None:
    """Raise InputError if a tracker does not exist, or if its package is not installed."""
    for name in trackers:
        check_choice("report_to", name, TRACKERS)
        if find_spec(TRACKERS[name].package) is None:
            raise InputError(
                f"report_to {name} needs a package: pip install {TRACKERS[name].package}", "report_to"
            )
