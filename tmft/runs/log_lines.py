"""The lines that a fine-tuning run prints: a header when it begins, and a line after each epoch."""

import statistics

from tmft.device import choose_precision
from tmft.formatting import format_duration, percent
from tmft.runs.run_config import Run
from tmft.runs.run_folder import format_provenance
from tmft.sentence_encoder import SentenceEncoder
from tmft.training.loop_state import EpochResult


def run_header(run: Run, model: SentenceEncoder, num_examples: dict[str, int]) -> str:
    """Return the lines that are printed when a run begins: folder, data, device and origin of the weights.

    num_examples: {task: number of training examples}; the name of a single task is "".
    """
    where = f"{choose_precision(run.config.recipe.precision, model.device)} on {model.device}"
    examples = " + ".join(f"{number} {name}".strip() for name, number in num_examples.items())
    provenance = f"weights from {format_provenance(run.provenance)}" if run.provenance else ""
    lines = [
        f"\n{run.folder}: {examples} training examples, {where}",
        model.load_report,
        provenance,
        model.compatibility_note,
    ]
    return "\n".join(str(line) for line in lines if line)


def epoch_line(epochs: list[EpochResult], metric: str, num_epochs: int) -> str:
    """Return the line that is printed after an epoch; * marks a dev score that is the best so far.

    epochs: all epochs so far; the line is about the last one. metric: the score on dev to print. num_epochs:
    number of epochs of the whole run.
    """
    epoch, seconds = epochs[-1], statistics.mean(epoch.seconds for epoch in epochs)
    score, mark = percent(epoch.dev[metric]), "*" if epoch.is_best else " "
    time_left = format_duration((num_epochs - epoch.epoch) * seconds)
    return (
        f"epoch {epoch.epoch:2}/{num_epochs} | loss {epoch.loss:.4f} | dev {metric} {score} {mark} | "
        f"lr {epoch.lr:.1e} | {epoch.pairs_per_second:.0f} pairs/s | {time_left} left"
    )
