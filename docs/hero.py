"""Draw docs/method.svg, the figure of README.md: the method, its best-known result, and our controlled pair.

    python docs/hero.py

The scores are read from data/authors.tsv, those of the authors of the method, and from docs/objectives.json,
ours. The SVG is written by hand, so that it needs no package and its text stays text.
"""

import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

DOCS = Path(__file__).resolve().parent
sys.path[:0] = [str(DOCS)]

from svg import BLUE, GRAY, GREEN, INK, RED, opening, text  # noqa: E402

WIDTH, HEIGHT = 1000, 420


def main() -> None:
    (DOCS / "method.svg").write_text(hero(), encoding="utf-8", newline="\n")


def hero() -> str:
    """Return the content of method.svg."""
    electra = published_scores("google/electra-base-discriminator")
    (mlm, mlm_best), (rtd, rtd_best), (clm, clm_best) = map(our_scores, ("mlm", "rtd", "clm"))
    best = max(range(len(electra)), key=lambda layer: electra[layer])
    whole = len(electra) - 1
    title = (
        f"ELECTRA-base with {best} of its {whole} layers: {electra[best]:.1f}. "
        f"With all {whole}: {electra[whole]:.1f}."
    )
    description = (
        "Left: the first l layers are kept, their output is averaged over the tokens, and the model is "
        "fine-tuned so that the cosine of two sentences becomes their score. Middle: test Spearman x 100 on "
        "the STS benchmark by number of layers of ELECTRA-base, as published by the authors: it rises to "
        f"{electra[best]:.1f} with {best} layers and falls to {electra[whole]:.1f} with all {whole}. Right: "
        "our own small models, which differ only in the task that they were trained on last. From the layer "
        f"that dev chose to layer 8, those that spotted replaced words fall by {rtd[rtd_best] - rtd[8]:.1f} "
        f"points, those that filled in masked words by {mlm[mlm_best] - mlm[8]:.1f}, those that named the "
        f"next word by {clm[clm_best] - clm[8]:.1f}."
    )
    parts = [
        *opening(WIDTH, HEIGHT, title, description),
        text(24, 34, title, size=21, bold=True),
        *method(24, 70),
        *chart(
            (360, 640),
            "ELECTRA-base, published",
            "Rep et al. 2024 (all but 3, 9, 12: arXiv version)",
            [(electra, RED, "", best)],
        ),
        *chart(
            (716, 984),
            "Ours, small: one ancestor",
            "the last task differs; mean of 9 runs each",
            [
                (clm, GREEN, "named the next word", clm_best),
                (mlm, BLUE, "filled in masked words", mlm_best),
                (rtd, RED, "spotted replaced words", rtd_best),
            ],
            first=1,
        ),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def published_scores(checkpoint: str) -> list[float]:
    """Return the scores of the authors on the STS benchmark with 0, 1, ... layers.

    They are those of the EMNLP version where it says them, at few layers; else those of the arXiv version.
    """
    lines = (DOCS.parent / "data/authors.tsv").read_text("utf-8").splitlines()
    emnlp, arxiv = (
        line.split("\t")[4].split()
        for version in ("EMNLP", "arXiv")
        for line in lines
        if line.startswith(f"{checkpoint}\tstsb\t\t{version}\t")
    )
    return [float(old if new == "-" else new) for new, old in zip(emnlp, arxiv, strict=True)]


def our_scores(objective: str) -> tuple[list[float], int]:
    """Return the mean test scores by layer of our models with an objective, and the layer that dev chose."""
    content = json.loads((DOCS / "objectives.json").read_text("utf-8"))["fine_tuned"]["stsb"][objective]
    dev, test = (
        [statistics.mean(layer) for layer in zip(*content[split].values(), strict=True)]
        for split in ("dev", "test")
    )
    return test, dev.index(max(dev))


def method(left: int, top: int) -> list[str]:
    """Return the drawing of the method: what is removed, what is kept, the mean, the cosine and the loss."""
    parts = []
    boxes = [
        ("last layers: removed", "none", GRAY, 'stroke-dasharray="5 4"'),
        ("layer l", "#d3e5f6", INK, ""),
        ("…", "#d3e5f6", INK, ""),
        ("layer 1", "#d3e5f6", INK, ""),
        ("embeddings", "#eaf2fa", INK, ""),
    ]
    for i, (label, fill, ink, dash) in enumerate(boxes):
        y = top + 62 + 46 * i
        parts.append(
            f'<rect x="{left}" y="{y}" width="190" height="36" rx="6" fill="{fill}" stroke="{ink}" {dash}/>'
        )
        parts.append(text(left + 95, y + 23, label, anchor="middle", color=ink, size=14))
    parts.append(text(left + 95, top + 322, "two sentences", anchor="middle", size=14))
    parts.append(f'<path d="M{left + 95} {top + 308}v-10" stroke="{INK}" stroke-width="1.5"/>')
    kept = top + 62 + 46 + 18
    parts.append(
        f'<path d="M{left + 190} {kept}h24v-92h-30" fill="none" stroke="{RED}" stroke-width="2"/>'
        f'<path d="M{left + 186} {kept - 97}l-8 5 8 5z" fill="{RED}"/>'
    )
    parts.append(text(left + 222, kept - 36, "mean over", color=RED, size=13))
    parts.append(text(left + 222, kept - 20, "the tokens", color=RED, size=13))
    parts.append(text(left + 172, top + 38, "cosine(u, v)", anchor="end", size=15))
    parts.append(text(left, top + 10, "trained to be the score of the pair:", size=13, color=GRAY))
    return parts


def chart(
    span: tuple[int, int],
    title: str,
    subtitle: str,
    curves: Sequence[tuple[list[float], str, str, int]],
    first: int = 0,
) -> list[str]:
    """Return a chart of scores by number of layers.

    span: its left and right end. curves: scores, color, label and the layer that gets a star, of each; the
    labels stand in the lower left corner. first: the first layer that is shown.
    """
    left, right = span
    top, bottom = 150, 356
    last = max(len(scores) for scores, *_ in curves) - 1
    values = [score for scores, *_ in curves for score in scores[first:]]
    step = 5 if max(values) - min(values) > 10 else 2
    low, high = step * int(min(values) // step), step * int(-(-max(values) // step))

    def x(layer: float) -> float:
        return left + (right - left) * (layer - first) / (last - first)

    def y(score: float) -> float:
        return bottom - (bottom - top) * (score - low) / (high - low)

    parts = [
        text(left - 34, 88, title, size=15, bold=True),
        text(left - 34, 108, subtitle, size=12.5, color=GRAY),
    ]
    for score in range(low, high + 1, step):
        parts.append(f'<path d="M{left} {y(score):.1f}H{right}" stroke="#e3e3de"/>')
        parts.append(text(left - 8, y(score) + 4, str(score), anchor="end", size=12, color=GRAY))
    for layer in range(first, last + 1, 3 if last > 8 else 1):
        parts.append(text(x(layer), bottom + 19, str(layer), anchor="middle", size=12, color=GRAY))
    parts.append(f'<path d="M{left} {bottom}H{right}" stroke="{GRAY}"/>')
    parts.append(text((left + right) / 2, bottom + 40, "layers kept", anchor="middle", size=13))
    parts.append(text(left - 34, 134, "Spearman × 100 on STSB", size=12, color=GRAY))
    for number, (scores, color, label, best) in enumerate(curves):
        points = " ".join(
            f"{x(layer):.1f},{y(score):.1f}" for layer, score in enumerate(scores) if layer >= first
        )
        parts.append(f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="2.4"/>')
        parts += [
            f'<circle cx="{x(layer):.1f}" cy="{y(score):.1f}" r="3.4" fill="{color}"/>'
            for layer, score in enumerate(scores)
            if layer >= first
        ]
        parts.append(text(x(best), y(scores[best]) + 6, "★", anchor="middle", size=20, color=color))
        if label:
            line = bottom - 18 * (len(curves) - number) + 6
            parts.append(text(left + 4, line, label, color=color, size=13))
            change = f"{scores[-1] - scores[best]:+.1f}".replace("-", "−")
            parts.append(text(right + 6, y(scores[-1]) + 18, change, anchor="end", color=color, bold=True))
        else:
            parts.append(
                text(
                    x(best),
                    y(scores[best]) - 12,
                    f"{scores[best]:.1f}",
                    anchor="middle",
                    color=color,
                    bold=True,
                )
            )
            parts.append(
                text(right, y(scores[-1]) + 20, f"{scores[-1]:.1f}", anchor="end", color=color, bold=True)
            )
    return parts


if __name__ == "__main__":
    main()
