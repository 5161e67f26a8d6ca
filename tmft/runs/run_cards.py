"""What the model cards of runs say: from result.json to Markdown."""

import math
from pathlib import Path

from tmft.checkpoints.model_card import Told, model_card, plain
from tmft.device import choose_precision
from tmft.formatting import NOT_SCORES, clock, percent
from tmft.runs.result_schema import read_result
from tmft.runs.run_config import Run
from tmft.runs.run_folder import lineage
from tmft.runs.sweeps import summary, sweeps_of
from tmft.sentence_encoder import SentenceEncoder

GOALS = {"mlm": "masked language modelling", "rtd": "replaced-token detection", "span": "span corruption"}
FIGURES = {
    "mlm_loss": "loss of the masked tokens, nats",
    "mlm_accuracy": "masked tokens that are predicted right",
    "span_loss": "loss of the tokens that the decoder writes, nats",
    "span_accuracy": "tokens that the decoder writes right, those before them given",
    "rtd_loss": "loss of replaced-token detection, nats",
    "rtd_accuracy": "tokens that are told right, original or replaced",
    "rtd_baseline": "the same, always saying original",
}


def opening(run: Run, model: SentenceEncoder, counts: dict[str, int]) -> str:
    """What is printed when a run begins; counts: of the train examples, by task."""
    where = f"{choose_precision(run.what.recipe.precision, model.device)} on {model.device}"
    count = " + ".join(f"{number} {name}".strip() for name, number in counts.items())
    history = f"weights from {lineage(run.history)}" if run.history else ""
    lines = [f"\n{run.folder}: {count} training examples, {where}", model.load_report, history, model.compatibility_note]
    return "\n".join(str(line) for line in lines if line)


def told_by(result: dict, curve: str = "") -> Told:
    """What the run knows of its sentence encoder, for the card; curve: Markdown, the layers of its sweep."""
    first = (result["history"] or [result])[0]["settings"]
    names = [name for name in result["test"] if name.rpartition(" ")[2] not in NOT_SCORES]
    scores = [
        (result["data"], split, name, result[split].get(name)) for split in ("dev", "test") for name in names
    ]
    known = tuple(score for score in scores if score[-1] is not None and not math.isnan(score[-1]))
    begun_with = (first.get("init") != "random" and first["ckpt"]) or ""
    return Told(fine_tuning_results(result) + curve, begun_with, known)


def curve_of(folder: Path, result: dict) -> str:
    """The layers of the sweep that a run is of, for its card; '' if there is but one."""
    beside = sorted(folder.absolute().parent.glob("*/result.json"))
    results = [(path, read_result(path.parent)) for path in beside]
    same = [(path, other) for path, other in results if other.get("sweep") == result["sweep"]]
    sweeps = [sweep for sweep in sweeps_of(same) if len(sweep.layers) > 1]
    return "".join(f"\nThe layers of this sweep:\n\n```\n{summary(sweep)}\n```\n" for sweep in sweeps)


def fine_tuning_results(result: dict) -> str:
    """The part of a sentence encoder's card that a run adds."""
    settings, dev, test = result["settings"], result["dev"], result["test"]
    history = result["history"]
    origin = plain(f"the weights of {lineage(history)}" if history else f"{settings['init']} weights", 1000)
    names = [name for name in dev if name.rpartition(" ")[2] not in NOT_SCORES]
    data, objective = plain(result["data"]), plain(settings["task"]["objective"])

    def cells(scores: dict) -> str:
        return " | ".join(percent(scores[name]) for name in names)

    note = f"\nA pair is called 1 if its cosine reaches {dev['threshold']:.4f}." if "threshold" in dev else ""
    return f"""
Fine-tuned on {data}, beginning with {origin}: objective {objective},
{settings["epochs"]} epochs of batches of {settings["batch_size"]} examples, learning rate {settings["lr"]:g},
seed {settings["seed"]}, {plain(result["precision"])}.

| split | {" | ".join(f"{plain(name)} x 100" for name in names)} |
|---|{"---|" * len(names)}
| dev, at epoch {result["chosen_epoch"]}, the best | {cells(dev)} |
| test, scored once, {test["pairs"]} pairs | {cells(test)} |
{note}{views_table(dev, test)}
{result["parameters"]["stored"]:,} parameters. All settings: result.json.
"""


def views_table(dev: dict, test: dict) -> str:
    """What is left of the score where the model is cut, if it was made for that."""
    rows = [
        f"| {plain(key.removesuffix('views') + name)} | {percent(score)} | {percent(test[key][name])} |"
        for key in dev
        if key.rpartition(" ")[2] == "views"
        for name, score in dev[key].items()
    ]
    return "\n| cut to | dev | test |\n|---|---:|---:|\n" + "\n".join(rows) + "\n" if rows else ""


def pretraining_card(model_type: str, layers: int, width: int, part: str, result: dict) -> str:
    """README.md of a pre-trained checkpoint; part: discriminator, generator, or '' for a single encoder."""
    settings = result["settings"]
    before, after = result["held_out"]["before"], result["held_out"]["after"]
    source = plain(settings["ckpt"] or f"random weights in the shape of {settings['from_scratch']}")
    rows = [f"| {FIGURES[name]} | {before[name]:.4f} | {after[name]:.4f} |" for name in after]
    batch, steps = settings["batch_size"] * settings["accumulate"], result["curve"][-1]["steps"]
    text = plain(", ".join(Path(name).name for name, _ in settings["text"]), 10_000)
    return model_card(
        f"{part.capitalize() or 'Encoder'}: {model_type}, {layers} x {width}",
        f"""
Pre-trained by {GOALS[settings["task"]]} from {source}:
{result["tokens_seen"]:,} tokens seen in {steps} steps of {batch} sentences, learning rate {settings["lr"]:g},
seed {settings["seed"]}, {result["precision"]}, in {clock(result["seconds"])} hours.

Text ({result["sentences"]:,} sentences, {result["text_tokens"]:,} tokens): {text}.

| held-out sentences | before | after |
|---|---:|---:|
{chr(10).join(rows)}

All settings: result.json.
""",
        tags=["fill-mask", "tmft"],
    )
