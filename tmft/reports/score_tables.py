"""Text tables of scores, as evaluate.py prints them.

Their argument `results` is {task: {variant: scores}}. A variant is the number of a layer, or the weight of an
interpolation of two models; scores is the dict that an evaluator returns (tmft/evaluation/evaluators.py).
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tmft.evaluation.compare_models import ModelDifference, mean_difference
from tmft.evaluation.evaluators import ISOTROPY_METRICS, Evaluation, Results, is_trained_on_train
from tmft.io.formatting import NON_SCORE_KEYS, percent, text_bar, text_table


def format_results(
    results: Results,
    evaluations: Mapping[str, Evaluation],
    variant_name: str,
    random_scores: Mapping[str, float],
    estimated: Sequence[str],
) -> str:
    """Return the tables of the scores of a model, with notes on how they came about.

    variant_name: "layer" or "weight", see format_scores_by_variant. random_scores: {task: score of random
    embeddings}; empty if none were scored. estimated: names of the token weights and the post-processing
    that were estimated from the texts of each task.
    """
    is_curve = len(next(iter(results.values()))) > 1
    metrics = {name: evaluation.task.metric for name, evaluation in evaluations.items()}
    parts = [
        format_scores_by_variant(results, metrics, variant_name)
        if is_curve
        else format_scores_by_metric(results)
    ]
    for name, variants in results.items():
        if ISOTROPY_METRICS[0] in next(iter(variants.values())):
            parts.append(f"{name}\n{format_isotropy(variants)}")
    if random_scores:
        scores = ", ".join(f"{name} {percent(score)}" for name, score in random_scores.items())
        parts.append(f"random embeddings with the same options: {scores}")
    text = "\n\n".join(parts)
    if estimated and not all(is_trained_on_train(one.task) for one in evaluations.values()):
        text += f"\n{' and '.join(estimated)}: estimated from the sentences that are scored (transductive)"
    return text


def format_scores_by_metric(results: Results) -> str:
    """Return a table of results that have a single variant: a line per task, a column per metric, x 100.

    The cell of a metric that a task does not have is empty. For tasks with subsets, the last column is the
    mean score of the subsets and, in brackets, their number.
    """
    scores = {task: next(iter(variants.values())) for task, variants in results.items()}
    excluded = (*NON_SCORE_KEYS, *ISOTROPY_METRICS)
    metrics = list(
        dict.fromkeys(metric for result in scores.values() for metric in result if metric not in excluded)
    )
    has_subsets = any("subsets" in result for result in scores.values())
    lines = [["task", "examples", *metrics, *["mean of subsets"] * has_subsets, ""]]
    for task, result in scores.items():
        values = [percent(result[metric]) if metric in result else "" for metric in metrics]
        subsets = ""
        if "subsets" in result:
            subsets = f"{percent(result['subset_mean'])} ({len(result['subsets'])})"
        lines.append([task, str(result["pairs"]), *values, *[subsets] * has_subsets, ""])
    return text_table(lines)


def format_scores_by_variant(results: Results, metrics: Mapping[str, str], variant_name: str) -> str:
    """Return a table with a line per variant and a column per task, with the metric of the task, x 100.

    metrics: {name of a task: its metric}. Each line ends with a bar that shows the mean over the tasks, as
    its heading says. variant_name: heading of the first column, "layer" or "weight".
    """
    columns = [[scores[metrics[name]] for scores in variants.values()] for name, variants in results.items()]
    curves = list(zip(*columns, strict=True))  # the scores of each variant
    means = [sum(scores) / len(scores) for scores in curves]
    bar = "bar: mean of the tasks" if len(results) > 1 else f"bar: {next(iter(results), '')}"
    lines = [[variant_name, *results, bar]]
    for i, variant in enumerate(next(iter(results.values()))):
        lines.append([str(variant), *(percent(score) for score in curves[i]), text_bar(means, i)])
    return text_table(lines)


def format_isotropy(layers: Mapping[float, dict[str, Any]]) -> str:
    """Return a table of one task with a line per layer: scores and measures of isotropy, not x 100.

    Each line ends with a bar that shows the first score, as its heading says. layers: {layer: scores}.
    """
    first = next(iter(layers.values()))
    names = [name for name, value in first.items() if isinstance(value, float) and name != "subset_mean"]
    lines = [["layer", *(name.replace("_", " ") for name in names), f"bar: {names[0].replace('_', ' ')}"]]
    curve = [scores[names[0]] for scores in layers.values()]
    for i, (layer, scores) in enumerate(layers.items()):
        lines.append([str(layer), *(f"{scores[name]:.4f}" for name in names), text_bar(curve, i)])
    return text_table(lines)


def format_speed(measured: Sequence[Mapping[str, float]]) -> str:
    """Return a table of sentences per second, with a line per measurement of `speed_by_shape`."""
    lines = [["tokens", "sentences at once", "sentences/s", ""]]
    for entry in measured:
        shape = [f"{entry[key]}" for key in ("tokens", "batch_size")]
        lines.append([*shape, f"{entry['sentences_per_second']:,.1f}", ""])
    return text_table(lines)


def difference_table(
    models: Sequence[str], rows: Mapping[str, ModelDifference], speeds: Sequence[float]
) -> str:
    """Return the table of two models: a line per task, their mean, and their speed.

    models: the names of both. A star marks a difference whose interval does not contain 0.
    """
    names = [Path(model).name for model in models]
    heading = ["task", "examples", "metric", *(names if names[0] != names[1] else models), "difference"]
    lines = [[*heading, "95 % interval"]]
    averaged = {"mean": mean_difference(list(rows.values()))} if len(rows) > 1 else {}
    for name, row in {**rows, **averaged}.items():
        interval = ""
        if row.interval:
            low, high = row.interval
            interval = f"{100 * low:+.2f} to {100 * high:+.2f}" + (" *" if low > 0 or high < 0 else "")
        cells = [name, str(row.examples), row.metric, percent(row.first), percent(row.second)]
        lines.append([*cells, f"{100 * row.difference:+.2f}", interval])
    first, second = speeds
    factor = f"x {second / first:.1f}"
    lines.append(["sentences/s", "", "", f"{first:,.0f}", f"{second:,.0f}", factor, ""])
    note = "difference: the second model minus the first; paired bootstrap over the examples"
    star = "*: 0 is outside the interval"
    return f"{text_table(lines)}\n\n{note}; {star}"
