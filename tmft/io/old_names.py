"""Names that version 0.11.0 and older versions wrote into files, and the names that replaced them.

Users have finished runs and saved models from before the renaming. The readers of such files call the
functions below once, directly after parsing, so that the rest of the code knows a single name per thing. The
conversion does not need the version of a file: it changes old names only, and a file of today comes back
equal. A value of the wrong type is returned unchanged; the check of the file that follows refuses it.
"""

from collections.abc import Iterable

# fmt: off
# ------------------------------------------------------------------ result.json: settings of a run

# field of FineTuningConfig, PretrainingConfig, Recipe or PretrainingRecipe -> field today
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

# field of Task -> field today
TASK_FIELDS = {
    "empty":    "empty_text",
    "suite":    "task_type",
    "settings": "objective_args",
    "judge":    "eval_files",
    "hidden":   "test_labels_hidden",
    "parts":    "subtasks",
}

# hyperparameter of an objective -> its name today
OBJECTIVE_ARGS = {
    "both":     "symmetric",
    "distinct": "mask_duplicate_anchors",
    "lines":    "max_lines",
    "matrix":   "similarity_weight",
    "late":     "dropout_after_features",
    "scaled":   "rescale_to_labels",
}

# name of an objective -> entry of OBJECTIVES today
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

# name of a task -> entry of TASKS today
TASKS = {"distill": "distillation"}

# name of a metric -> entry of METRICS today
METRICS = {"fidelity": "teacher_cosine"}

# name of a setting today -> {its value under the old name: its value today}. The table is used only where the
# setting has its old name, because "round-robin" has got another meaning.
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


def rename_keys(content: dict, names: dict[str, str]) -> dict:
    """A copy of `content` with its keys renamed; a key whose new name is there as well keeps its old name."""
    return {key if names.get(key) in content else names.get(key, key): content[key] for key in content}


def convert_result(result: object) -> object:
    """The content of a result.json, with the names of today; scores of several tasks become nested."""
    if not isinstance(result, dict):
        return result
    result = rename_keys(result, RESULT_KEYS)
    if isinstance(result.get("provenance"), list):
        result["provenance"] = [convert_run(entry) for entry in result["provenance"]]
    if isinstance(result.get("arguments"), dict):
        result["arguments"] = convert_arguments(result["arguments"])
    result = convert_run(result)
    if isinstance(result.get("epochs"), list):
        names = subtask_names(result)
        result["epochs"] = [convert_epoch(epoch, names) for epoch in result["epochs"]]
    return result


def convert_run(run: object) -> object:
    """The settings and the scores of one run: a result.json, or an entry of its provenance."""
    if not isinstance(run, dict):
        return run
    run = dict(run)
    if "settings" in run:
        run["settings"] = convert_settings(run["settings"])
    names = subtask_names(run)
    return run | {split: convert_scores(run[split], names) for split in ("dev", "test") if split in run}


def convert_settings(settings: object) -> object:
    """The settings of a run: the fields of its config and of its recipe."""
    if not isinstance(settings, dict):
        return settings
    converted = convert_values(settings, SETTINGS)
    if isinstance(converted.get("task"), dict):  # the name of a task where the run is a pre-training
        converted["task"] = convert_task(converted["task"])
    return converted


def convert_task(task: dict) -> dict:
    """The fields of a Task and of its subtasks."""
    task = convert_task_fields(task)
    if isinstance(task.get("subtasks"), dict):
        task["subtasks"] = {
            TASKS.get(name, name): convert_task_fields(subtask) if isinstance(subtask, dict) else subtask
            for name, subtask in task["subtasks"].items()
        }
    return task


def convert_task_fields(task: dict) -> dict:
    task = rename_keys(task, TASK_FIELDS)
    if isinstance(task.get("objective_args"), dict):
        task["objective_args"] = rename_keys(task["objective_args"], OBJECTIVE_ARGS)
    if isinstance(task.get("recipe"), dict):
        task["recipe"] = convert_values(task["recipe"], SETTINGS)
    if isinstance(task.get("objective"), str):  # "linear, dot" where the task has subtasks
        names = task["objective"].split(", ")
        task["objective"] = ", ".join(OBJECTIVES.get(name, name) for name in names)
    return rename_value(task, "metric", METRICS)


def convert_arguments(arguments: dict) -> dict:
    """The options of a command line; `task` names tasks and objectives, as in "sst5:linear quora"."""
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


def rename_value(content: dict, key: str, names: dict[str, str]) -> dict:
    """A copy of `content` in which the value of a key, if it is an old name, is replaced by the new one."""
    value = content.get(key)
    return content | {key: names[value]} if isinstance(value, str) and value in names else content


def convert_values(settings: dict, names: dict[str, str]) -> dict:
    """Rename keys, and the values of those keys that were renamed."""
    converted = rename_keys(settings, names)
    for old in settings.keys() - converted.keys():
        values, value = VALUES.get(names[old], {}), settings[old]
        if isinstance(value, str):
            converted[names[old]] = values.get(value, value)
    return converted


def convert_epoch(epoch: object, names: Iterable[str]) -> object:
    """The result of one epoch. names: of the tasks that were trained together, none for a single one."""
    if not isinstance(epoch, dict):
        return epoch
    epoch = rename_keys(epoch, EPOCH_FIELDS)
    return epoch | {"dev": convert_scores(epoch["dev"], names)} if "dev" in epoch else epoch


def convert_scores(scores: object, names: Iterable[str]) -> object:
    """{"overall": x, "sst5 accuracy": y} -> {"overall": x, "tasks": {"sst5": {"accuracy": y}}}

    names: of the tasks that were trained together; the scores of a single task stay flat.
    """
    names = list(names)
    if not isinstance(scores, dict) or "tasks" in scores:
        return scores
    if not names:
        return rename_keys(scores, SCORE_KEYS)
    nested, tasks = {}, {name: {} for name in names}
    for key, value in scores.items():
        name, _, metric = key.rpartition(" ")
        if (name := TASKS.get(name, name)) in tasks:
            tasks[name][SCORE_KEYS.get(metric, metric)] = value
        else:
            nested[key] = value
    return nested | {"tasks": tasks}


def subtask_names(run: dict) -> list[str]:
    """The names of the tasks that a run trained together; [] for a single task."""
    settings = run.get("settings")
    task = settings.get("task") if isinstance(settings, dict) else None
    subtasks = task.get("subtasks") if isinstance(task, dict) else None
    return list(subtasks) if isinstance(subtasks, dict) else []


# ----------------------------------------------------------------- tmft.json of a saved model


def convert_tmft_json(content: dict) -> dict:
    """The content of a tmft.json: the settings of a model that sentence-transformers does not support."""
    return convert_values(content, TMFT_JSON)


# ----------------------------------------------------------------- state.pt of an interrupted fine-tuning run

TRAINING_STATES = ("trainable", "occurring_words", "optimizer", "scheduler", "scaler", "steps")
WEIGHT_PREFIXES = {"0.after.": "0.head_modules."}


def convert_training_state(content: object) -> object:
    """The content of a state.pt, under the names of today.

    Version 0.11.0 had a list of states in place of names, and of gradients that are compared and of sampled
    layers only what fits the callbacks of today by position.
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


def convert_pretraining_state(content: dict) -> dict:
    """The content of the state.pt of an interrupted pre-training run, under the names of today."""
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


def convert_weight_names(weights: dict) -> dict:
    """Weights of the model and its objectives by name."""
    converted = {}
    for name, weight in weights.items():
        prefix = next((prefix for prefix in WEIGHT_PREFIXES if name.startswith(prefix)), None)
        converted[WEIGHT_PREFIXES[prefix] + name.removeprefix(prefix) if prefix else name] = weight
    return converted
