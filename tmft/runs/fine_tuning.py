"""Fine-tune in Python with one call: `fine_tune` composes what `python train.py` composes.

The examples are written to TSV files such as the command reads with --data, and the runs are those of the
command, with the same folders and results: the command, its reports and a later call find them again.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields
from functools import partial
from os import PathLike
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np

from tmft.callbacks import Callback
from tmft.datasets.task_lookup import objective_config_class, read_all_splits, validate_task
from tmft.device import choose_device
from tmft.errors import InputError, check_choice, check_range, did_you_mean, short_repr
from tmft.io.atomic import write_file
from tmft.io.distributed import single_process
from tmft.io.files import is_utf8_string
from tmft.io.formatting import mean_and_std
from tmft.io.text import read_lines, read_table
from tmft.losses.objectives import OBJECTIVES
from tmft.reports.plots import draw_epoch_curves, draw_score_by_layer
from tmft.runs.layer_search import search_rounds, sweep_from_runs
from tmft.runs.run_config import FineTuningConfig, FineTuningRecipe
from tmft.runs.sweep_plan import expand_grid, run_all
from tmft.runs.sweeps import Sweep
from tmft.runs.train_run import train_run
from tmft.sentence_encoder import SentenceEncoder
from tmft.tasks import PAIR_COLUMNS, TEXT_COLUMN, TRIPLET_COLUMNS, Task
from tmft.training.trackers import check_trackers

LABEL_NAMES = ("score", "label")  # columns of a score and of the name of a class
HELD_OUT = 0.1  # fraction of the examples that is held out for dev, and for test, if they are not given
# Parameters of fine_tune, by which these settings of a run are given.
NAMED_SETTINGS = ("ckpt", "layer", "seed", "task", "recipe", "dev_fraction", "loss_weights", "init_from")


@dataclass(repr=False)
class FineTuningResult:
    """What `fine_tune` returns; printed, it is one line.

    model: the best model, by its score on dev. layer: the number of layers that it has kept.
    sweep: the runs, by layer; `sweep.scores(layer, "test")` has the score of each seed, not x 100.
    folder: the run folder of the model; None without an output_dir.
    """

    model: SentenceEncoder
    layer: int
    sweep: Sweep
    folder: Path | None

    def __repr__(self) -> str:
        layers, seeds = self.sweep.layers, len(self.sweep.layers[self.layer])
        dev, test = (mean_and_std(self.sweep.scores(self.layer, split)) for split in ("dev", "test"))
        of_layers = f", the best of {len(layers)} on dev" if len(layers) > 1 else ""
        of_seeds = f", mean of {seeds} seeds" if seeds > 1 else ""
        return f"layer {self.layer}{of_layers}: {self.sweep.metric} x 100: dev {dev}, test {test}{of_seeds}"

    def plot(self, path: str | PathLike[str]) -> None:
        """Draw the score on dev by layer or, of a single layer, by epoch; needs matplotlib.

        path: the figure to write, such as curve.svg or curve.png.
        """
        if len(self.sweep.layers) > 1:
            draw_score_by_layer([self.sweep], Path(path), "dev")
        else:
            draw_epoch_curves(self.sweep, Path(path), "dev")


class Row(NamedTuple):
    """An example: its texts, and its score or the name of its class, None if it has no label."""

    texts: tuple[str, ...]
    label: Any


def fine_tune(
    model: str | PathLike[str] | SentenceEncoder,
    train: Any,
    dev: Any = None,
    test: Any = None,
    *,
    score_range: tuple[float, float] = (0, 5),
    objective: str = "cosine_mse",
    metric: str | None = None,
    layer: int | str | Sequence[int] | None = None,
    seeds: int | Sequence[int] = 1,
    callbacks: Sequence[Callback] = (),
    output_dir: str | PathLike[str] | None = None,
    report_to: str | Sequence[str] = (),
    device: str = "auto",
    **settings: Any,
) -> FineTuningResult:
    """Fine-tune the first layers of a model on examples, and return the model that is best on dev.

    model: a hub id, a folder, or a SentenceEncoder, which is not changed.
    train, dev, test: the examples: a list of tuples, (text, text, score), or (text, text, class) and (text,
        class) for an objective that predicts classes, or (anchor, positive) and (anchor, positive, negative)
        for multiple_negatives_ranking; a list of dicts or a table of pandas, datasets or polars, in which the
        column "score" or "label" (with both, "label" for classes) is that of the label and the others are
        texts; or the path of a TSV file with such columns. If dev or test is None, a tenth of train is held
        out for it. For multiple_negatives_ranking, dev has pairs with scores, and without a test half of dev
        is held out.
    score_range: the lowest and the highest score.
    objective: an entry of OBJECTIVES. metric: an entry of METRICS, which chooses the best epoch on dev; None:
        spearman for scores, accuracy for classes.
    layer: how many layers to keep, several such numbers, or text as for `--layer` of train.py: "3,6,9",
        "0-12", "all", or "auto" to search the best one; None keeps all. With several layers, the one that is
        best on dev is returned.
    seeds: the number of runs with different seeds, or the seeds.
    callbacks: objects that the training loop calls at certain times (callbacks.py), for every run.
    output_dir: where the run folders are kept. The same call skips runs that are finished and resumes one
        that was interrupted; None keeps only the model.
    report_to: where the training is logged: one or several of "tensorboard" (needs an output_dir), "wandb"
        and "mlflow", whose packages have to be installed.
    device: "auto", "cpu", "cuda" or another device of torch.
    settings: any other setting of a run: fields of Recipe (epochs, batch_size, lr, ...), FineTuningRecipe and
        FineTuningConfig (pooling, max_length, freeze_layers, ...) and of the objective (temperature, ...).

    Raises InputError for a score outside score_range, a setting that does not exist or has a wrong value,
    rows that the objective cannot use, and if a folder in output_dir holds a run with other settings or data.

    Example:

    >>> from tmft import fine_tune
    >>> pairs = [("A dog runs.", "A dog is running.", 4.8), ("A dog runs.", "It rains.", 0.2)] * 10
    >>> result = fine_tune("data/twins/mlm", pairs, layer=1, epochs=1, lr=1e-3)  # doctest: +ELLIPSIS
    <BLANKLINE>
    ...
    >>> result.layer, result.model.encode("A dog runs.").shape
    (1, (128,))
    """
    check_choice("objective", objective, OBJECTIVES)
    report_to = [report_to] if isinstance(report_to, str) else list(report_to)
    check_trackers(report_to)
    if "tensorboard" in report_to and output_dir is None:
        raise InputError(
            "report_to tensorboard writes into the run folders: give output_dir", "report_to", "output_dir"
        )
    is_contrastive = not OBJECTIVES[objective].needs_labels
    has_classes = OBJECTIVES[objective].prediction_type == "class"
    label_names = LABEL_NAMES[::-1] if has_classes else LABEL_NAMES
    splits = {
        name: examples_to_rows(examples, not is_contrastive or name != "train", label_names)
        for name, examples in (("train", train), ("dev", dev), ("test", test))
        if examples is not None
    }
    hold_out_missing(splits, is_contrastive)
    if has_classes and len(class_indices(splits["train"])) < 2:
        only_class = splits["train"][0].label
        raise InputError(f"all examples of train have the class {only_class}: give at least two")
    if not has_classes:
        labels = {
            name: [row.label for row in rows]
            for name, rows in splits.items()
            if not (is_contrastive and name == "train")
        }
        check_scores(labels, score_range)

    recipe_names, config_names, objective_names = (
        {field.name for field in fields(config)} if config else set()
        for config in (FineTuningRecipe, FineTuningConfig, objective_config_class(objective))
    )
    config_names -= set(NAMED_SETTINGS)
    known = sorted(recipe_names | config_names | objective_names)
    if unknown := [name for name in settings if name not in known]:
        raise InputError(
            f"fine_tune has no setting {unknown[0]!r}: choose from {', '.join(known)}"
            f"{did_you_mean(unknown[0], known)}"
        )

    settings = {name: to_python_number(value) for name, value in settings.items()}

    def chosen(names: set[str]) -> dict[str, Any]:
        return {name: value for name, value in settings.items() if name in names}

    with ExitStack() as stack:
        folder = Path(output_dir or stack.enter_context(TemporaryDirectory(prefix="tmft-")))
        data = folder / "data"
        num_texts = len(splits["train"][0].texts)
        task = Task(
            str(data.absolute() / "{split}.tsv"),
            *score_range,
            columns={1: TEXT_COLUMN, 2: PAIR_COLUMNS, 3: TRIPLET_COLUMNS}[num_texts],
            label="" if is_contrastive else "label" if has_classes else "score",
            classes=class_indices(splits["train"]) if has_classes else {},
            objective=objective,
            metric=metric or ("accuracy" if has_classes else "spearman"),
            objective_args=chosen(objective_names),
            eval_files=str(data.absolute() / "{split}.tsv") if is_contrastive else "",
        )
        validate_task(task)
        for name, rows in splits.items():
            columns = (
                (*PAIR_COLUMNS, "score")
                if is_contrastive and name != "train"
                else (*task.columns, task.label)
            )
            rescale = score_range if is_contrastive else None  # eval_files have scores from 0 to 5
            write_file(data / f"{name}.tsv", table_text(rows, columns, rescale))
        if isinstance(model, SentenceEncoder):
            model.save_pretrained(folder / "start")
        config = FineTuningConfig(
            ckpt=str(folder / "start") if isinstance(model, SentenceEncoder) else str(model),
            task=task,
            recipe=FineTuningRecipe(**chosen(recipe_names)),
            **chosen(config_names),
        )
        seeds = to_python_number(seeds)
        seeds = list(range(seeds)) if isinstance(seeds, int) else [to_python_number(seed) for seed in seeds]
        check_range("number of seeds", len(seeds), 1)
        if isinstance(layer, Sequence) and not isinstance(layer, str):
            layer = ",".join(map(str, layer))
        layers = None if layer is None else str(layer)
        processes = single_process(choose_device(device))
        make_runs = partial(expand_grid, data="data", output_dir=folder)
        rounds = search_rounds([config.ckpt], layers, seeds, config, make_runs, processes)
        runs, examples = next(rounds), read_all_splits(task)
        while runs:  # one round, or with layer="auto" three
            run_all(
                runs,
                processes,
                lambda run, one: train_run(run, examples, one, dict(settings), callbacks, report_to),
            )
            finished, runs = runs, next(rounds, [])
        sweep = sweep_from_runs(finished)
        best_layer = sweep.best_layer
        scores = sweep.scores(best_layer, "dev")
        best_seed = np.argmax([-np.inf if np.isnan(score) else score for score in scores])
        best = sweep.layers[best_layer][int(best_seed)]["folder"]
        best_model = SentenceEncoder.from_pretrained(best)
        return FineTuningResult(best_model, best_layer, sweep, best if output_dir else None)


def examples_to_rows(examples: Any, has_labels: bool, label_names: Sequence[str]) -> list[Row]:
    """Return the examples that are given as a list of tuples or dicts, a table, or the path of a TSV file.

    label_names: LABEL_NAMES, of which the first one that is there has the label.
    """
    if isinstance(examples, (str, PathLike)):
        path = Path(examples)
        header = next(read_lines(path), "").split("\t")
        if len(header) == 1:
            raise InputError(
                f"{path} has no tab in its first line: make TSV files of it by python -m tmft data convert"
            )
        examples = [dict(zip(header, cells, strict=True)) for _, cells in read_table(path, header)]
    elif not isinstance(examples, (list, tuple)):
        if hasattr(examples, "to_dicts"):  # polars
            examples = examples.to_dicts()
        elif hasattr(examples, "to_list"):  # datasets
            examples = examples.to_list()
        elif hasattr(examples, "to_dict"):  # pandas
            examples = examples.to_dict("records")
    rows: list[Row] = []
    text_names: list[str] = []
    for number, example in enumerate(examples, start=1):
        place = f"example {number}, {short_repr(example)}"
        if isinstance(example, Mapping):
            text_names = text_names or order_text_names(example)
            if sorted(text_names) != sorted(order_text_names(example)):
                raise InputError(f"{place}: its columns are not those of the first example")
            label = next((example[name] for name in label_names if name in example), None)
            cells = [example[name] for name in text_names]
        elif isinstance(example, Sequence) and not isinstance(example, str):
            *cells, label = example if has_labels else (*example, None)
        else:
            raise InputError(f"{place}: give a tuple such as (text, text, score), or a dict")
        if not 1 <= len(cells) <= 3 or not all(is_utf8_string(cell) and cell.strip() for cell in cells):
            columns = ' in a column "score" or "label"' if isinstance(example, Mapping) else ""
            raise InputError(
                f"{place}: give one to three texts, none of them empty, and the label last{columns}"
            )
        if has_labels and (label is None or label == ""):
            raise InputError(f"{place}: it has no score or label")
        rows.append(Row(tuple(cells), label))
        if len(cells) != len(rows[0].texts):
            raise InputError(f"{place}: it has {len(cells)} texts, the first example {len(rows[0].texts)}")
    if not rows:
        raise InputError("there are no examples: give a list of tuples such as (text, text, score)")
    return rows


def order_text_names(example: Mapping[str, Any]) -> list[str]:
    """Return the names of the texts: those of pairs and triplets in their order, others as they come."""
    names = [name for name in example if name not in LABEL_NAMES]
    known = (*PAIR_COLUMNS, *TRIPLET_COLUMNS)
    return sorted(names, key=known.index) if set(names) <= set(known) else names


def hold_out_missing(splits: dict[str, list[Row]], is_contrastive: bool) -> None:
    """Take dev and test, if they are missing, out of train or, as it has no scores, out of dev."""
    if is_contrastive and "dev" not in splits:
        raise InputError("dev: give pairs with scores, by which the best epoch is chosen", "dev")
    for name in ("dev", "test"):
        if name not in splits:
            source, fraction = ("dev", 0.5) if is_contrastive else ("train", HELD_OUT)
            rows = splits[source]
            count = max(2, round(fraction * len(rows)))
            if len(rows) < count + 2:
                raise InputError(f"{source} has {len(rows)} examples, too few to hold out some: give {name}")
            held_out = set(Random(0).sample(range(len(rows)), count))
            splits[name] = [row for index, row in enumerate(rows) if index in held_out]
            splits[source] = [row for index, row in enumerate(rows) if index not in held_out]


def check_scores(labels: dict[str, list[Any]], score_range: tuple[float, float]) -> None:
    """Raise InputError unless the labels of each split are scores in a range, and not those of 0 to 1."""
    low, high = score_range
    for split, scores in labels.items():
        for label in scores:
            try:
                score = float(label)
            except (TypeError, ValueError):
                raise InputError(
                    f"score {short_repr(label)} is not a number: give a number, or an objective for classes, "
                    "such as softmax, or for pairs without scores, multiple_negatives_ranking",
                    "objective",
                ) from None
            if not low <= score <= high:
                raise InputError(
                    f"score {score:g} in {split} is outside {low:g} to {high:g}: correct it, or set "
                    "score_range to the range of the scores",
                    "score_range",
                )
    first_split = next(iter(labels.values()))
    if low >= 0 and high > 1 and all(0 <= float(label) <= 1 for label in first_split):
        raise InputError(
            f"all scores are from 0 to 1, but score_range is {low:g} to {high:g}: give score_range=(0, 1)",
            "score_range",
        )


def to_python_number(value: Any) -> Any:
    """Return a number of NumPy as one of Python, which result.json can hold; anything else as it is."""
    return value.item() if isinstance(value, np.generic) else value


def class_indices(rows: Iterable[Row]) -> dict[str, int]:
    """Return the index of each class: their names in alphabetic order."""
    return {name: index for index, name in enumerate(sorted({str(row.label) for row in rows}))}


def table_text(rows: list[Row], columns: tuple[str, ...], score_range: tuple[float, float] | None) -> str:
    """Return the TSV file with these rows; scores of a range are rescaled to 0 to 5."""
    lines = ["\t".join(filter(None, columns))]
    for texts, label in rows:
        cells = [" ".join(text.replace("\t", " ").splitlines()) for text in texts]
        if columns[-1] == "score" and score_range is not None:
            low, high = score_range
            label = 5 * (float(label) - low) / (high - low)
        lines.append("\t".join([*cells, *([str(label)] if columns[-1] else [])]))
    return "\n".join(lines) + "\n"
