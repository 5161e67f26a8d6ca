"""Model cards of runs: turn the content of a result.json into Markdown."""

import math
from pathlib import Path
from typing import Any

from tmft.checkpoints.model_card import ModelCardData, model_card
from tmft.formatting import escape_markdown, format_duration, percent
from tmft.runs.result_schema import read_result
from tmft.runs.run_folder import format_provenance
from tmft.runs.sweeps import different_setting, find_score, group_into_sweeps, layer_table, score_names

MAX_PROVENANCE_LENGTH, MAX_TEXT_LENGTH = 1000, 10_000  # characters of these texts in a card
TASK_NAMES = {
    "mlm": "masked language modeling",
    "rtd": "replaced token detection",
    "span": "span corruption",
    "clm": "causal language modeling",
}
# Task -> what the hub calls models of it; "fill-mask" for the others.
HUB_TAGS = {"clm": "text-generation", "span": "text2text-generation"}
METRIC_NAMES = {
    "mlm_loss": "loss on masked tokens (nats)",
    "mlm_accuracy": "accuracy on masked tokens",
    "span_loss": "loss on the target tokens of the decoder (nats)",
    "span_accuracy": "accuracy on the target tokens of the decoder, with teacher forcing",
    "clm_loss": "loss on the next token (nats)",
    "clm_accuracy": "accuracy on the next token",
    "rtd_loss": "loss of replaced token detection (nats)",
    "rtd_accuracy": "accuracy of replaced token detection",
    "rtd_baseline": 'accuracy of predicting "original" for every token',
}


def card_data_from_result(result: dict[str, Any], curve: str = "") -> ModelCardData:
    """Return the part of a model card that describes a fine-tuning run: text, base model and scores.

    result: content of result.json. curve: Markdown with the scores of all layers of the sweep, as
    `layer_curve` returns it. Undefined scores are left out.
    """
    first_settings = (result["provenance"] or [result])[0]["settings"]
    defined = tuple(
        (result["data"], split, name, score)
        for split in ("dev", "test")
        for name in score_names(result["test"])
        if (score := get_score(result[split], name)) is not None and not math.isnan(score)
    )
    base = "" if first_settings.get("init") == "random" else first_settings["ckpt"] or ""
    return ModelCardData(fine_tuning_results(result) + curve, base, defined)


def get_score(scores: dict[str, Any], name: str) -> float | None:
    """Return one of the scores of a split, None if the split has no score of this name (see score_names)."""
    return find_score(scores, name) if name in score_names(scores) else None


def layer_curve(folder: Path, result: dict[str, Any]) -> str:
    """Return Markdown with a table of all layers in the sweep of a run; "" if there is only one layer.

    folder: the run folder, next to which the other runs of the sweep are searched; those with other settings
    are left out. result: its result.json.
    """
    paths = sorted(folder.absolute().parent.glob("*/result.json"))
    results = [(path, read_result(path.parent)) for path in paths]
    same_sweep = [
        (path, other)
        for path, other in results
        if other.get("sweep") == result["sweep"]
        and not different_setting(result["settings"], other["settings"])
    ]
    sweeps = [sweep for sweep in group_into_sweeps(same_sweep) if len(sweep.layers) > 1]
    return "".join(f"\nThe layers of this sweep:\n\n```\n{layer_table(sweep)}\n```\n" for sweep in sweeps)


def fine_tuning_results(result: dict[str, Any]) -> str:
    """Return Markdown about a fine-tuning run: its training, its scores and the number of parameters.

    result: content of result.json.
    """
    settings, dev, test = result["settings"], result["dev"], result["test"]
    provenance = result["provenance"]
    if provenance:
        initial_weights = f"the weights of {format_provenance(provenance)}"
    else:
        initial_weights = f"{settings['init']} weights"
    initial_weights = escape_markdown(initial_weights, MAX_PROVENANCE_LENGTH)
    names = score_names(dev)
    data, objective = escape_markdown(result["data"]), escape_markdown(settings["task"]["objective"])

    def cells(scores: dict[str, Any]) -> str:
        return " | ".join(percent(find_score(scores, name)) for name in names)

    note = ""
    if "threshold" in dev:
        note = f"\nA pair is classified as 1 if its cosine is at least {dev['threshold']:.4f}."
    return f"""
Fine-tuned on {data}, starting from {initial_weights}: objective {objective},
{settings["epochs"]} epochs of batches of {settings["batch_size"]} examples, learning rate {settings["lr"]:g},
seed {settings["seed"]}, {escape_markdown(result["precision"])}.

| split | {" | ".join(f"{escape_markdown(name)} x 100" for name in names)} |
|---|{"---|" * len(names)}
| dev, at the best epoch, {result["chosen_epoch"]} | {cells(dev)} |
| test, scored once, {test["pairs"]} pairs | {cells(test)} |
{note}{sub_embeddings_table(dev, test)}
{result["parameters"]["stored"]:,} parameters. All settings: result.json.
"""


def sub_embeddings_table(dev: dict[str, Any], test: dict[str, Any]) -> str:
    """Return a Markdown table with the score of each layer and truncated dimension that was trained.

    dev, test: scores of the splits, as in result.json. Returns "" if only the full embedding was trained.
    """
    rows = []
    for task, dev_scores in [("", dev), *dev.get("tasks", {}).items()]:
        test_scores = test["tasks"][task] if task else test
        for name, score in dev_scores.get("sub_embeddings", {}).items():
            label = escape_markdown(f"{task} {name}".strip())
            rows.append(f"| {label} | {percent(score)} | {percent(test_scores['sub_embeddings'][name])} |")
    return "\n| truncated to | dev | test |\n|---|---:|---:|\n" + "\n".join(rows) + "\n" if rows else ""


def pretraining_card(
    model_type: str, num_layers: int, hidden_size: int, component: str, result: dict[str, Any]
) -> str:
    """Return the model card (README.md) of a pre-trained checkpoint.

    model_type, num_layers, hidden_size: of the encoder. component: "discriminator" or "generator" if the
    checkpoint is a part of a model, "" if it is the whole model. result: content of result.json.
    """
    settings = result["settings"]
    before, after = result["held_out"]["before"], result["held_out"]["after"]
    initial_weights = (
        settings["ckpt"] or f"random weights with the architecture of {settings['from_scratch']}"
    )
    rows = [f"| {METRIC_NAMES[name]} | {before[name]:.4f} | {after[name]:.4f} |" for name in after]
    batch_size = settings["batch_size"] * settings["gradient_accumulation_steps"]
    text = escape_markdown(", ".join(Path(name).name for name, _ in settings["text"]), MAX_TEXT_LENGTH)
    num_steps, duration = result["curve"][-1]["steps"], format_duration(result["seconds"])
    title = component.capitalize() or "Encoder"
    return model_card(
        f"{title}: {model_type}, {num_layers} layers, hidden size {hidden_size}",
        f"""
Pre-trained by {TASK_NAMES[settings["task"]]} from {escape_markdown(initial_weights)}:
{result["tokens_seen"]:,} tokens seen in {num_steps} steps of {batch_size} sentences, learning rate
{settings["lr"]:g}, seed {settings["seed"]}, {result["precision"]}, in {duration} hours.

Text ({result["sentences"]:,} sentences, {result["text_tokens"]:,} tokens): {text}.

| held-out sentences | before | after |
|---|---:|---:|
{chr(10).join(rows)}

All settings: result.json.
""",
        tags=[HUB_TAGS.get(settings["task"], "fill-mask"), "tmft"],
    )
