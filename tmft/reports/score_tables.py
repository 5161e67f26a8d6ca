"""Tables of scores as evaluate.py prints them: {line: {task: scores}}, x 100."""

from tmft.data import Task
from tmft.evaluation.evaluators import ISOTROPY
from tmft.formatting import NOT_SCORES, bar, percent, table


def task_table(results: dict[str, dict[float, dict]]) -> str:
    """{task: {line: scores}} with one line for each: a line per task, a column per metric of any of them."""
    scores = {task: next(iter(lines.values())) for task, lines in results.items()}
    beside = (*NOT_SCORES, *ISOTROPY)
    names = list(dict.fromkeys(name for result in scores.values() for name in result if name not in beside))
    parts = any("subsets" in result for result in scores.values())
    lines = [["task", "examples", *names, *["mean of subsets"] * parts, ""]]
    for task, result in scores.items():
        values = [percent(result[name]) if name in result else "" for name in names]
        subsets = (
            f"{percent(result['subset_mean'])} ({len(result['subsets'])})" if "subsets" in result else ""
        )
        lines.append([task, str(result["pairs"]), *values, *[subsets] * parts, ""])
    return table(lines)


def curve_table(results: dict[str, dict[float, dict]], tasks: dict[str, Task], what: str) -> str:
    """A line per layer (or share: what), a column per task with its own metric; and a bar of their mean."""
    curves = list(
        zip(*([s[tasks[name].metric] for s in of.values()] for name, of in results.items()), strict=True)
    )
    means = [sum(curve) / len(curve) for curve in curves]
    lines = [[what, *tasks, ""]]
    for i, line in enumerate(next(iter(results.values()))):
        lines.append([str(line), *(percent(score) for score in curves[i]), bar(means, i)])
    return table(lines)


def isotropy_table(layers: dict[int, dict]) -> str:
    """A line per layer of one task: its scores and its isotropy, raw."""
    first = next(iter(layers.values()))
    names = [name for name, value in first.items() if isinstance(value, float) and name != "subset_mean"]
    lines = [["layer", *(name.replace("_", " ") for name in names), ""]]
    curve = [scores[names[0]] for scores in layers.values()]
    for layer, scores in layers.items():
        lines.append([str(layer), *(f"{scores[name]:.4f}" for name in names), bar(curve, len(lines) - 1)])
    return table(lines)
