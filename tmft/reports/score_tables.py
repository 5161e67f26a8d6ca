"""Tables of scores x 100, as evaluate.py prints them.

The scores are given as {task: {variant: scores}}. A variant is a layer, or a weight of an interpolation.
"""

from tmft.evaluation.evaluators import ISOTROPY_METRICS
from tmft.formatting import NON_SCORE_KEYS, percent, text_bar, text_table
from tmft.tasks import Task


def task_table(results: dict[str, dict[float, dict]]) -> str:
    """Format results with a single variant: a line per task, a column for each metric of any task."""
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


def curve_table(results: dict[str, dict[float, dict]], tasks: dict[str, Task], variant_name: str) -> str:
    """Format a line per variant, a column per task with the metric of the task, and a bar of their mean.

    variant_name: the heading of the first column, "layer" or "weight".
    """
    columns = [
        [scores[tasks[name].metric] for scores in variants.values()] for name, variants in results.items()
    ]
    curves = list(zip(*columns, strict=True))  # the scores of each variant
    means = [sum(scores) / len(scores) for scores in curves]
    lines = [[variant_name, *tasks, ""]]
    for i, variant in enumerate(next(iter(results.values()))):
        lines.append([str(variant), *(percent(score) for score in curves[i]), text_bar(means, i)])
    return text_table(lines)


def isotropy_table(layers: dict[int, dict]) -> str:
    """Format a line per layer of one task: scores and isotropy, not x 100, and a bar of the first score."""
    first = next(iter(layers.values()))
    names = [name for name, value in first.items() if isinstance(value, float) and name != "subset_mean"]
    lines = [["layer", *(name.replace("_", " ") for name in names), ""]]
    curve = [scores[names[0]] for scores in layers.values()]
    for i, (layer, scores) in enumerate(layers.items()):
        lines.append([str(layer), *(f"{scores[name]:.4f}" for name in names), text_bar(curve, i)])
    return text_table(lines)
