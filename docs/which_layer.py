"""Draw docs/which-layer.svg: the regret of each way to choose a layer, from the tables of which-layer.md.

    python docs/which_layer.py

A cell of the tables such as "4: 0.05" is the chosen layer and its regret; with two seeds it is
"1; 2: 0; 2.69", or "4; 4: 0" if both regrets are equal. Needs matplotlib.
"""

import re
import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parent
sys.path.insert(0, str(DOCS.parent))

WAYS = {  # start of a row's or column's name in the tables -> name in the figure, in the order of the cost
    "frozen": "frozen\nscores",
    "CKA": "CKA",
    "all layers at once, first epoch": "all layers\nat once,\nfirst epoch",
    "first round": "first round\nof the search",
    "all layers at once, 3 epochs": "all layers\nat once,\n3 epochs",
    "--layer auto": "--layer auto",
}


def read_tables(page: str) -> tuple[dict[str, dict[str, list[float]]], dict[str, str]]:
    """Return {way: {model: regrets of its seeds}} and {way: cost} of the two tables of the page.

    The models are the columns of the first table, which has a row for each way, and the rows of the second.
    """
    tables = [
        [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in table.splitlines()]
        for table in re.findall(r"^\|.*way to choose.*(?:\n\|.*)+|^\| model, task .*(?:\n\|.*)+", page, re.M)
    ]
    (heads, _, *by_way), (ways, _, *by_model) = tables
    cells = [(row[0], model, cell) for row in by_way for model, cell in zip(heads[2:], row[2:], strict=True)]
    cells += [(way, row[0], cell) for row in by_model for way, cell in zip(ways[1:], row[1:], strict=True)]
    regrets: dict[str, dict[str, list[float]]] = {way: {} for way in WAYS}
    for name, model, cell in cells:
        way = way_name(name)
        if way and cell:
            layers, numbers = (part.replace("*", "").split(";") for part in cell.split(":"))
            values = [float(number) for number in numbers]
            regrets[way][model.replace("`", "")] = values * (len(layers) // len(values))
    return regrets, {way: row[1] for row in by_way if (way := way_name(row[0]))}


def way_name(name: str) -> str | None:
    """Return the key of WAYS with which a name in the tables begins; None if none fits, as for the sweep."""
    return next((way for way in WAYS if name.replace("*", "").replace("`", "").startswith(way)), None)


def draw(path: Path, page: str) -> None:
    """Draw a column of points for each way, with a color and marker for each model."""
    from tmft.reports.drawing import line_style, save_figure

    regrets, costs = read_tables(page)
    models = list(dict.fromkeys(model for by_model in regrets.values() for model in by_model))

    def on(axes):
        for number, model in enumerate(models):
            offset = 0.075 * (number - (len(models) - 1) / 2)  # side by side, so that none hides another
            points = [
                (place + offset, regret)
                for place, by_model in enumerate(regrets.values())
                for regret in by_model.get(model, [])
            ]
            style = line_style(number) | {"linestyle": "none", "clip_on": False}
            axes.plot(*zip(*points, strict=True), label=model, **style)
        axes.axhline(0.5, color="#555555", linewidth=0.8, linestyle=":")
        axes.set_xticks(range(len(WAYS)), [f"{costs[way]}\n{name}" for way, name in WAYS.items()])
        axes.grid(visible=False, axis="x")
        axes.set_xlim(-0.5, len(WAYS) - 0.5)
        axes.set_ylim(bottom=0)
        axes.set_xlabel("Cost in % of the layer-epochs of a sweep, and way to choose the layer")
        axes.set_ylabel("Regret (points on dev)")
        axes.legend(loc="lower left", bbox_to_anchor=(-0.06, 1.0), ncols=3, columnspacing=1.0)

    save_figure(
        on,
        path,
        lines=-(-len(models) // 3),
        widths=(7.0,),
        height=3.1,
        title="How much is lost by choosing a layer without a sweep?",
        note="Regret: the score x 100 on dev at the best layer of the sweep, less that at the chosen layer. "
        "A point is one model, task and seed of the search. Dotted: half a point.",
    )


if __name__ == "__main__":
    draw(DOCS / "which-layer.svg", (DOCS / "which-layer.md").read_text(encoding="utf-8"))
