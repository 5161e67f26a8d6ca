"""Draw docs/base-size.svg, a base-size model layer by layer, and print its table in results.md.

    python docs/base_size.py

base-size.json has what `evaluate.py MODEL --task sts --layer all --precision bf16` printed, STSB on dev, and
of the runs `train.py --ckpt MODEL --layer L --epochs 3 --precision bf16` the dev scores of all epochs and the
test score of the best one. Needs matplotlib.
"""

import json
import sys
from pathlib import Path
from statistics import mean

DOCS = Path(__file__).resolve().parent
sys.path.insert(0, str(DOCS.parent))

MODELS = json.loads((DOCS / "base-size.json").read_text("utf-8"))


def mean_of_seven(model: dict) -> list[float]:
    """Return the mean of the test scores of each layer, from 0 on."""
    return [mean(scores) for scores in zip(*model["test"].values(), strict=True)]


def format_table() -> str:
    """Return the table of all-mpnet-base-v2 in Markdown: a column for each layer."""
    model = MODELS["all-mpnet-base-v2"]
    tuned = model["fine-tuned"]
    rows = {
        "mean of seven": mean_of_seven(model),
        "STSB": model["test"]["stsb"],
        "STSB, dev": model["dev"]["stsb"],
        "SICK-R": model["test"]["sickr"],
        "STSB, fine-tuned": [run["test"] for run in tuned],
        "STSB, fine-tuned, dev": [max(run["dev"]) for run in tuned],
        "best epoch": [run["dev"].index(max(run["dev"])) + 1 for run in tuned],
    }
    layers = range(len(model["dev"]["stsb"]))
    lines = [f"| layers | {' | '.join(map(str, layers))} |", "|---|" + "---:|" * len(layers)]
    for name, row in rows.items():
        cells = [f"{score:.2f}" if isinstance(score, float) else str(score) for score in row]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def draw(path: Path) -> None:
    """Draw STSB of all-mpnet-base-v2 with and without training, and the mean of seven of both models."""
    from tmft.reports.drawing import legend_above, line_style, save_figure

    large, small = MODELS["all-mpnet-base-v2"], MODELS["all-MiniLM-L6-v2"]
    curves = {
        "all-mpnet-base-v2, STSB, fine-tuned": [run["test"] for run in large["fine-tuned"]],
        "all-mpnet-base-v2, STSB": large["test"]["stsb"],
        "all-mpnet-base-v2, mean of seven": mean_of_seven(large),
        "all-MiniLM-L6-v2, mean of seven": mean_of_seven(small),
    }

    def on(axes):
        for number, (name, scores) in enumerate(curves.items()):
            axes.plot(range(len(scores)), scores, label=name, **line_style(number))
        axes.set_xticks(range(13))
        axes.set_xlabel("layers that are kept")
        axes.set_ylabel("Spearman × 100, test")
        legend_above(axes)

    save_figure(
        on,
        path,
        lines=len(curves),
        widths=(5.2,),
        height=2.8,
        title="Sentence encoders that are cut, layer by layer",
        description="Test scores of all-mpnet-base-v2 and all-MiniLM-L6-v2 with their first layers: low "
        "up to layer 9 of 12 and layer 4 of 6, rising in the last layers. Fine-tuned on the STS benchmark, "
        "all-mpnet-base-v2 rises from the first layer on.",
    )


if __name__ == "__main__":
    print(format_table())
    draw(DOCS / "base-size.svg")
