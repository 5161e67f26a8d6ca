"""Fine-tune in Python with one call: `fine_tune` composes what `python train.py` composes.

The runs are those of the command, with the same folders and results, so that its reports and a later call
find them again.
"""

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields, replace
from functools import partial
from os import PathLike
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, get_type_hints

import numpy as np

from tmft.callbacks import Callback
from tmft.data import Examples
from tmft.datasets.given_examples import (
    HELD_OUT,
    LABEL_NAMES,
    collect_examples,
    hold_out_missing,
    parse_labels,
)
from tmft.datasets.task_lookup import check_classes, objective_config_class, validate_task
from tmft.device import choose_device, keep_random_state
from tmft.errors import (
    MAX_COUNT,
    MAX_SEEDS,
    SEED_RANGE,
    InputError,
    check_choice,
    check_not_blank,
    check_range,
    did_you_mean,
    short_repr,
)
from tmft.io.arguments import check_arguments
from tmft.io.distributed import single_process
from tmft.io.formatting import mean_and_std
from tmft.losses.objectives import OBJECTIVES
from tmft.metrics import METRICS, correlation_metrics
from tmft.runs.layer_search import plan_runs, sweep_from_runs
from tmft.runs.predictor import Predictions, Predictor
from tmft.runs.run_config import FineTuningConfig, FineTuningRecipe
from tmft.runs.sweep_plan import expand_grid, parse_layer_ranges, run_all
from tmft.runs.sweeps import Sweep
from tmft.runs.train_run import train_run
from tmft.sentence_encoder import SentenceEncoder
from tmft.tasks import PAIR_COLUMNS, TEXT_COLUMN, TRIPLET_COLUMNS, Task

# Names of the classes of dissimilar and of similar texts, for an objective that predicts one number.
OPPOSITES = [["0", "1"], ["no", "yes"], ["false", "true"]]
# Parameters of fine_tune, by which these settings of a run are given.
NAMED_SETTINGS = {"ckpt", "layer", "seed", "task", "recipe", "dev_fraction", "loss_weights", "init_from"}


@dataclass(repr=False)
class FineTuningResult:
    """What `fine_tune` returns; printed, it is one line.

    model: the best model, by its score on dev. layer: the number of layers that it has kept.
    sweep: the runs, by layer; `sweep.scores(layer, "test")` has the score of each seed, not x 100.
    folder: the run folder of the model; None without an output_dir.
    predictor: the model with the head that was trained on it.
    """

    model: SentenceEncoder
    layer: int
    sweep: Sweep
    folder: Path | None
    predictor: Predictor

    def __repr__(self) -> str:
        layers, seeds = self.sweep.layers, len(self.sweep.layers[self.layer])
        dev, test = (mean_and_std(self.sweep.scores(self.layer, split)) for split in ("dev", "test"))
        of_layers = f", the best of {len(layers)} on dev" if len(layers) > 1 else ""
        of_seeds = f", mean of {seeds} seeds" if seeds > 1 else ""
        return f"layer {self.layer}{of_layers}: {self.sweep.metric} x 100: dev {dev}, test {test}{of_seeds}"

    def predict(self, texts: Sequence[Any]) -> Predictions:
        """Return the labels of N texts or pairs and, for classes, their probabilities, (N, C).

        texts: a list of texts or, if pairs were trained on, of pairs; see Predictor.predict.
        """
        return self.predictor.predict(texts)

    def save_pretrained(self, folder: str | PathLike[str]) -> None:
        """Write the model and its head to a folder that SentenceEncoder and Predictor open.

        folder: as in SentenceEncoder.save_pretrained.
        """
        self.predictor.save_pretrained(folder)


@keep_random_state
def fine_tune(
    model: str | PathLike[str] | SentenceEncoder,
    train: str | PathLike[str] | Iterable[Any],
    dev: str | PathLike[str] | Iterable[Any] | None = None,
    test: str | PathLike[str] | Iterable[Any] | None = None,
    *,
    score_range: tuple[float, float] = (0, 5),
    objective: str = "cosine_mse",
    metric: str | None = None,
    layer: int | str | Sequence[int] | None = None,
    seeds: int | Sequence[int] = 1,
    callbacks: Sequence[Callback] = (),
    output_dir: str | PathLike[str] | None = None,
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
        out for it, with all examples of the same texts. For multiple_negatives_ranking, dev has pairs with
        scores, and without a test half of dev is held out.
    score_range: the lowest and the highest score.
    objective: an entry of OBJECTIVES. metric: an entry of METRICS, which chooses the best epoch on dev; None:
        spearman for scores, accuracy for classes. With "f1" and an objective that predicts one number, such
        as cosine_bce, the labels are two classes: 0 and 1, "no" and "yes" or False and True.
    layer: how many layers to keep, several such numbers, or text as for `--layer` of train.py: "3,6,9",
        "0-12", "all", or "auto" to choose one by short runs; None keeps all. With several layers, the one
        that is best on dev is returned.
    seeds: the number of runs with different seeds, or the seeds.
    callbacks: objects that the training loop calls at certain times (callbacks.py), for every run.
    output_dir: where the run folders are kept. The same call skips runs that are finished and resumes one
        that was interrupted; None keeps only the model.

    device: "auto", "cpu", "cuda" or another device of torch.
    settings: any other setting of a run: fields of Recipe (epochs, batch_size, lr, ...), FineTuningRecipe and
        FineTuningConfig (pooling, max_length, freeze_layers, ...) and of the objective (temperature, ...).

    Raises InputError, before any file is read, for an argument of a wrong type or out of range and for a
    setting that does not exist; then for examples that the objective cannot use, such as a score outside
    score_range, and if a folder in output_dir holds a run with other settings or data.

    Example:

    >>> from tmft import fine_tune
    >>> pairs = [(f"Dog {n} runs.", f"Dog {n} is running.", 4.8) for n in range(30)]
    >>> pairs += [(f"Dog {n} runs.", f"It rains in city {n}.", 0.2) for n in range(30)]
    >>> result = fine_tune("data/twins/mlm", pairs, layer=1, epochs=1, lr=1e-3)  # doctest: +ELLIPSIS
    <BLANKLINE>
    ...
    >>> result.layer, result.model.encode("A dog runs.").shape
    (1, (128,))
    """
    score_range, layer, seeds = (to_python(value) for value in (score_range, layer, seeds))
    settings = {name: to_python(value) for name, value in settings.items()}
    check_arguments(locals(), get_type_hints(fine_tune))
    check_not_blank("output_dir", output_dir)
    low, high = score_range
    if not -MAX_COUNT <= low < high <= MAX_COUNT:
        raise InputError(
            f"score_range {short_repr(score_range)}: give two numbers, the smaller one first", "score_range"
        )
    check_choice(
        "objective", objective, [name for name, loss in OBJECTIVES.items() if not loss.needs_teacher]
    )
    if metric is not None:
        check_choice("metric", metric, METRICS)
    if isinstance(layer, Sequence) and not isinstance(layer, str):
        layer = ",".join(map(str, layer))
    layers = None if layer is None else str(layer)
    if layers not in (None, "all", "auto"):
        parse_layer_ranges(layers)
    check_range("number of seeds", seeds if isinstance(seeds, int) else len(seeds), 1, MAX_SEEDS)
    seeds = list(range(seeds) if isinstance(seeds, int) else seeds)
    for seed in seeds:
        check_range("seeds", seed, *SEED_RANGE)
    if len(set(seeds)) < len(seeds):
        raise InputError(f"seeds {short_repr(seeds)}: give each of them once", "seeds")
    processes = single_process(choose_device(device))

    config_class = objective_config_class(objective)
    parts = [part for part in (FineTuningRecipe, FineTuningConfig, config_class) if part]
    names = {part: {field.name for field in fields(part)} - NAMED_SETTINGS for part in parts}
    known = sorted(set().union(*names.values()))
    if unknown := [name for name in settings if name not in known]:
        raise InputError(
            f"fine_tune has no setting {unknown[0]!r}: choose from {', '.join(known)}"
            f"{did_you_mean(unknown[0], known)}"
        )
    chosen = {part: {name: settings[name] for name in settings if name in names[part]} for part in parts}
    if config_class:
        config_class(**chosen[config_class])  # checks the hyperparameters

    is_contrastive = not OBJECTIVES[objective].needs_labels
    has_scores = metric is None or METRICS[metric] is correlation_metrics
    has_classes = OBJECTIVES[objective].prediction_type == "class" or not (is_contrastive or has_scores)
    task = Task(
        "",
        low,
        high,
        label="" if is_contrastive else "label" if has_classes else "score",
        objective=objective,
        metric=metric or ("accuracy" if has_classes else "spearman"),
        objective_args=chosen[config_class] if config_class else {},
    )
    recipe = FineTuningRecipe(**chosen[FineTuningRecipe])
    config = FineTuningConfig(ckpt="", task=task, recipe=recipe, **chosen[FineTuningConfig])

    given = {"train": train, "dev": dev, "test": test}
    task, splits = prepare_data({name: part for name, part in given.items() if part is not None}, task)
    with ExitStack() as stack:
        folder = Path(output_dir or stack.enter_context(TemporaryDirectory(prefix="tmft-")))
        if isinstance(model, SentenceEncoder):
            model.save_pretrained(folder / "start")
            model = folder / "start"
        config = replace(config, ckpt=str(model), task=task)
        make_runs = partial(expand_grid, data="data", output_dir=folder)
        arguments = dict(settings)
        for runs in plan_runs([config.ckpt], layers, seeds, config, make_runs):
            run_all(
                runs,
                processes,
                lambda run: train_run(run, {"": splits}, processes.device, arguments, callbacks),
            )
        sweep = sweep_from_runs(runs)
        best_layer = sweep.best_layer
        scores = sweep.scores(best_layer, "dev")
        best_seed = np.argmax([-np.inf if np.isnan(score) else score for score in scores])
        best = sweep.layers[best_layer][int(best_seed)]["folder"]
        predictor = Predictor.from_pretrained(best)
        return FineTuningResult(predictor.model, best_layer, sweep, best if output_dir else None, predictor)


def to_python(value: Any) -> Any:
    """Return a number or an array of NumPy as Python has it, for result.json; anything else as it is."""
    return value.tolist() if isinstance(value, np.generic | np.ndarray) else value


def prepare_data(given: dict[str, Any], task: Task) -> tuple[Task, dict[str, Examples]]:
    """Return the task with the columns and classes of its examples, and these by the name of their split.

    given: name of a split -> its examples, as `fine_tune` takes them; what is missing is held out.
    task: its label is "score", "label" for classes or "" for anchors without labels, whose dev has scores.
    """
    has_classes, is_contrastive = task.label == "label", not task.label
    label_names = LABEL_NAMES[::-1] if has_classes else LABEL_NAMES
    train, names = collect_examples(given["train"], "train", bool(task.label), label_names)
    splits = {"train": train}
    for split in [name for name in given if name != "train"]:
        splits[split], _ = collect_examples(given[split], split, True, label_names, names)
    columns = {1: TEXT_COLUMN, 2: PAIR_COLUMNS, 3: TRIPLET_COLUMNS}[len(train.texts)]
    classes = sorted(set(train.labels)) if has_classes else []
    if len(classes) == 1:
        raise InputError(f"all examples of train have the class {classes[0]}: give at least two")
    task = replace(task, columns=columns, classes={name: index for index, name in enumerate(classes)})
    validate_task(task)
    predicts_class = OBJECTIVES[task.objective].prediction_type == "class"
    if has_classes and not predicts_class and [name.lower() for name in classes] not in OPPOSITES:
        raise InputError(
            f"classes {' and '.join(classes)}: it is not clear which of them similar texts have: give 0 and "
            "1, no and yes, or False and True"
        )
    if is_contrastive and "dev" not in splits:
        raise InputError("dev: give pairs with scores, by which the best epoch is chosen", "dev")

    scored_task = replace(task, columns=PAIR_COLUMNS, label="score") if is_contrastive else task
    for name in splits:
        if task.label or name != "train":
            splits[name] = parse_labels(splits[name], name, scored_task)
    source, fraction = ("dev", 0.5) if is_contrastive else ("train", HELD_OUT)
    low, high = task.min_score, task.max_score
    if not has_classes and low >= 0 and high > 1 and all(0 <= score <= 1 for score in splits[source].labels):
        raise InputError(
            f"all scores are from 0 to 1, but score_range is {low:g} to {high:g}: give score_range=(0, 1) "
            'or, if they are two classes, metric="f1"',
            "score_range",
        )
    hold_out_missing(splits, source, fraction)
    if has_classes:
        check_classes(splits, task)
    return task, splits
