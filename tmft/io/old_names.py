"""Convert files of version 0.11.0 and older, in which settings, scores and weights had other names.

Users have finished runs and saved models from before the renaming. The readers of such files call one of the
functions below directly after parsing, so that the rest of the code knows a single name per thing. The
version of a file need not be known: only old names are replaced, and a file with the current names is
returned unchanged. A value of the wrong type is returned unchanged as well; the check of the file, which
follows, refuses it.
"""

from collections.abc import Iterable
from typing import Any

# fmt: off
# ------------------------------------------------------------------ result.json: settings of a run

# old field of FineTuningConfig, PretrainingConfig, Recipe or PretrainingRecipe -> current field
SETTINGS = {
    "keep":        "keep_layers",
    "tokens":      "token_weights",
    "weights":     "loss_weights",
    "share":       "train_fraction",
    "warmup":      "warmup_ratio",
    "chunk":       "mini_batch_size",
    "order":       "task_sampling",
    "ends":        "stopping_strategy",
    "gradients":   "gradient_surgery",
    "freeze":      "freeze_layers",
    "every_layer": "all_layers",
    "matryoshka":  "matryoshka_dims",
    "accumulate":  "gradient_accumulation_steps",
    "save_every":  "save_steps",
    "half":        "save_fp16",
}

# old field of Task -> current field
TASK_FIELDS = {
    "empty":    "empty_text",
    "suite":    "task_type",
    "settings": "objective_args",
    "judge":    "eval_files",
    "hidden":   "test_labels_hidden",
    "parts":    "subtasks",
}

# old name of a hyperparameter of an objective -> current name
OBJECTIVE_ARGS = {
    "both":     "symmetric",
    "distinct": "mask_duplicate_anchors",
    "lines":    "max_lines",
    "matrix":   "similarity_weight",
    "late":     "dropout_after_features",
    "scaled":   "rescale_to_labels",
}

# old name of an objective -> current key of OBJECTIVES
OBJECTIVES = {
    "in_batch":            "multiple_negatives_ranking",
    "distill":             "distillation",
    "linear":              "single_text_head",
    "dot":                 "dot_product_head",
    "cosine":              "cosine_head",
    "difference":          "concat_head",
    "difference_cosine":   "concat_cosine_head",
    "difference_cosine01": "concat_cosine01_head",
}

# old name of a task -> current key of TASKS
TASKS = {"distill": "distillation"}

# old name of a metric -> current key of METRICS
METRICS = {"fidelity": "teacher_cosine"}

# current name of a setting -> {old value: current value}. A value is replaced only where the setting has its
# old name, because task_sampling "round-robin" now means something else than order "round-robin".
VALUES = {
    "task_sampling":     {"round-robin": "joint", "in-turn": "round-robin", "one-by-one": "sequential",
                          "by-size": "proportional"},
    "stopping_strategy": {"shortest": "first_exhausted", "longest": "all_exhausted"},
    "gradient_surgery":  {"sum": "none", "compare": "log", "project": "pcgrad"},
    "all_layers":        {"sum": "mean", "drawn": "sample", "taught": "self-distill"},
    "token_weights":     {"all": "uniform", "words": "no-special", "sentence": "no-prompt",
                          "content": "content-words", "mask": "mask-token"},
}

# -------------------------------------------------------------------- result.json: everything else

RESULT_KEYS = {"history": "provenance"}
SCORE_KEYS = METRICS | {"views": "sub_embeddings"}
EPOCH_FIELDS = {"number": "epoch", "best": "is_best", "cosines": "gradient_cosines"}
ARGUMENTS = SETTINGS | OBJECTIVE_ARGS | {
    "metric": "selection_metric",
    "seeds":  "num_seeds",
    "runs":   "output_dir",
    "name":   "run_name",
}

# -------------------------------------------------------------------- tmft.json of a saved model

TMFT_JSON = {"layer": "layer_mix", "tokens": "token_weights"}
# fmt: on


def rename_keys(content: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    """Return a copy of content with renamed keys. names: {old key: new key}.

    A key is not renamed if the dict has the new key, too.
    """
    return {key if names.get(key) in content else names.get(key, key): content[key] for key in content}


def convert_result(result: dict[str, Any]) -> dict[str, Any]:
    """Return the content of a result.json with current names; the scores of several tasks become nested."""
    result = rename_keys(result, RESULT_KEYS)
    if isinstance(result.get("provenance"), list):
        result["provenance"] = [
            convert_run(entry) if isinstance(entry, dict) else entry for entry in result["provenance"]
        ]
    if isinstance(result.get("arguments"), dict):
        result["arguments"] = convert_arguments(result["arguments"])
    result = convert_run(result)
    if isinstance(result.get("epochs"), list):
        names = subtask_names(result)
        result["epochs"] = [convert_epoch(epoch, names) for epoch in result["epochs"]]
    return result


def convert_run(run: dict[str, Any]) -> dict[str, Any]:
    """Return a run with current names in its settings, and with converted dev and test scores.

    run: the content of a result.json, or an entry of its "provenance".
    """
    run = dict(run)
    if "settings" in run:
        run["settings"] = convert_settings(run["settings"])
    names = subtask_names(run)
    return run | {split: convert_scores(run[split], names) for split in ("dev", "test") if split in run}


def convert_settings(settings: object) -> object:
    """Return the "settings" of a run, which are the fields of its config and recipe, with current names."""
    if not isinstance(settings, dict):
        return settings
    converted = convert_values(settings, SETTINGS)
    if isinstance(converted.get("task"), dict):  # the name of a task where the run is a pre-training
        converted["task"] = convert_task(converted["task"])
    return converted


def convert_task(task: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a Task that an earlier version stored, under their names of today.

    task: {field: value}, as in the "settings" of a result.json; it is not changed. The fields of its
    subtasks and recipe, and the names of subtasks, objectives and metrics, are renamed, too.
    """
    task = convert_task_fields(task)
    if isinstance(task.get("subtasks"), dict):
        task["subtasks"] = {
            TASKS.get(name, name): convert_task_fields(subtask) if isinstance(subtask, dict) else subtask
            for name, subtask in task["subtasks"].items()
        }
    return task


def convert_task_fields(task: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a Task, without those of its subtasks, with current names and values.

    task: {field: value}, with names of any version.
    """
    task = rename_keys(task, TASK_FIELDS)
    if isinstance(task.get("objective_args"), dict):
        task["objective_args"] = rename_keys(task["objective_args"], OBJECTIVE_ARGS)
    if isinstance(task.get("recipe"), dict):
        task["recipe"] = convert_values(task["recipe"], SETTINGS)
    if isinstance(task.get("objective"), str):  # "linear, dot" where the task has subtasks
        names = task["objective"].split(", ")
        task["objective"] = ", ".join(OBJECTIVES.get(name, name) for name in names)
    return rename_value(task, "metric", METRICS)


def convert_arguments(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a command line with current names and values. arguments: {option: value}.

    The option task names tasks and their objectives, as in "sst5:linear quora".
    """
    converted = convert_values(arguments, ARGUMENTS)
    converted = rename_value(converted, "objective", OBJECTIVES)
    converted = rename_value(converted, "selection_metric", METRICS)
    if isinstance(converted.get("task"), str):
        tasks = (word.partition(":") for word in converted["task"].split(" "))
        converted["task"] = " ".join(
            f"{TASKS.get(task, task)}{colon}{OBJECTIVES.get(objective, objective)}"
            for task, colon, objective in tasks
        )
    return converted


def rename_value(content: dict[str, Any], key: str, names: dict[str, str]) -> dict[str, Any]:
    """Return a copy of content in which the value of one key is replaced, if it is an old name.

    names: {old value: new value}.
    """
    value = content.get(key)
    return content | {key: names[value]} if isinstance(value, str) and value in names else content


def convert_values(settings: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    """Return settings with old names replaced: keys by `names`, {old key: new key}, values by VALUES.

    A value that is an old name is replaced only under a renamed key: {"order": "in-turn"} becomes
    {"task_sampling": "round-robin"}, but {"task_sampling": "round-robin"} is not changed.
    """
    converted = rename_keys(settings, names)
    for old in settings.keys() - converted.keys():
        values, value = VALUES.get(names[old], {}), settings[old]
        if isinstance(value, str):
            converted[names[old]] = values.get(value, value)
    return converted


def convert_epoch(epoch: object, names: Iterable[str]) -> object:
    """Return the result of one epoch with current names.

    names: the tasks that were trained together; [] for a run with a single task.
    """
    if not isinstance(epoch, dict):
        return epoch
    epoch = rename_keys(epoch, EPOCH_FIELDS)
    return epoch | {"dev": convert_scores(epoch["dev"], names)} if "dev" in epoch else epoch


def convert_scores(scores: object, names: Iterable[str]) -> object:
    """Return scores with current names; flat scores of several tasks become nested.

    {"overall": x, "sst5 accuracy": y} becomes {"overall": x, "tasks": {"sst5": {"accuracy": y}}}.
    names: the tasks that were trained together, as convert_settings calls them; [] for a single task, whose
    scores stay flat.
    """
    names = list(names)
    if not isinstance(scores, dict) or "tasks" in scores:
        return scores
    if not names:
        return rename_keys(scores, SCORE_KEYS)
    nested: dict[str, object] = {}
    tasks: dict[str, dict[str, object]] = {name: {} for name in names}
    for key, value in scores.items():
        name, _, metric = key.rpartition(" ")
        if (name := TASKS.get(name, name)) in tasks:
            tasks[name][SCORE_KEYS.get(metric, metric)] = value
        else:
            nested[key] = value
    return nested | {"tasks": tasks}


def subtask_names(run: dict[str, Any]) -> list[str]:
    """Return the names of the tasks that a run trained together; [] for a run with a single task."""
    settings = run.get("settings")
    task = settings.get("task") if isinstance(settings, dict) else None
    subtasks = task.get("subtasks") if isinstance(task, dict) else None
    return list(subtasks) if isinstance(subtasks, dict) else []


# ----------------------------------------------------------------- tmft.json of a saved model


def convert_tmft_json(content: dict[str, Any]) -> dict[str, Any]:
    """Return the content of a tmft.json with current names.

    It has the settings of a model that sentence-transformers does not support. Until version 0.12.0 it
    had the default prompt alone, without a name; here it gets the name "default".
    """
    content = convert_values(content, TMFT_JSON)
    if (prompt := content.pop("prompt", None)) is None:
        return content
    return content | {"prompts": {"default": prompt}, "default_prompt_name": "default"}


# ----------------------------------------------------------------- state.pt of an interrupted fine-tuning run

TRAINING_STATES = ("trainable", "occurring_words", "optimizer", "scheduler", "scaler", "steps")
WEIGHT_PREFIXES = {"0.after.": "0.head_modules."}


def convert_training_state(content: Any) -> Any:
    """Return the content of a state.pt in the current form.

    Version 0.11.0 stored states in a list, without names; here each gets its name by its position. Its state
    of compared or projected gradients is given to both callbacks, GradientCosines and PCGrad, one of which
    the run has.
    """
    if isinstance(content, dict) and "streams" in content and len(content.get("parts", ())) == 4:
        return convert_pretraining_state(content)
    if not isinstance(content, dict) or "streams" not in content or len(content.get("parts", ())) != 8:
        return content
    *states, gradients, embed = content["parts"]
    stateful = dict(zip(TRAINING_STATES, states, strict=True))
    stateful["trainable"] = convert_weight_names(stateful["trainable"])
    stateful["occurring_words"] = rename_keys(stateful["occurring_words"], {"whole": "full"})
    stateful["steps"] = rename_keys(stateful["steps"], {"began": "generator"})
    stateful |= {"embed": embed, "GradientCosines": gradients, "PCGrad": gradients}
    settings = convert_settings(content["settings"])
    names = subtask_names({"settings": settings})
    epochs, num_examples, total_loss, seconds = content["place"]
    best = content["best"] | {"weights": convert_weight_names(content["best"]["weights"])}
    return {
        "settings": settings,
        "progress": {
            "epochs": [convert_epoch(epoch, names) for epoch in epochs],
            "num_examples": num_examples,
            "total_loss": total_loss,
            "seconds": seconds,
        },
        "stateful": stateful,
        "rng_states": content["streams"],
        "best": best,
    }


def convert_pretraining_state(content: dict[str, Any]) -> dict[str, Any]:
    """Return the content of the state.pt of an interrupted pre-training run in the current form."""
    stateful = dict(zip(("model", "optimizer", "scheduler", "scaler"), content["parts"], strict=True))
    stateful["model"] = {
        name.replace("head.classify.", "head.classifier."): weight
        for name, weight in stateful["model"].items()
    }
    log, step, tokens, sums, seconds = content["place"]
    return {
        "settings": convert_settings(content["settings"]),
        "progress": {
            "log": log,
            "step": step,
            "tokens": tokens,
            "sums": rename_keys(sums, {"right": "rtd_correct"}),
            "seconds": seconds,
        },
        "stateful": stateful,
        "rng_states": content["streams"],
    }


def convert_weight_names(weights: dict[str, Any]) -> dict[str, Any]:
    """Return weights of the model and its objectives, {name: tensor}, under their current names."""
    converted = {}
    for name, weight in weights.items():
        prefix = next((prefix for prefix in WEIGHT_PREFIXES if name.startswith(prefix)), None)
        converted[WEIGHT_PREFIXES[prefix] + name.removeprefix(prefix) if prefix else name] = weight
    return converted
