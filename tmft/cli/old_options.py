"""Options of version 0.11.0 that have a new name, or became a command of their own.

A command that is called with one of them stops with a message that says what to use instead.
"""

from tmft.errors import InputError

# fmt: off
RENAMED_MODEL_OPTIONS = {
    "--dimensions": "--truncate-dim",
    "--average":    "--static-from",
}
TOKEN_WEIGHTS = (
    "--token-weights (all is now uniform, words no-special, sentence no-prompt, content content-words, "
    "mask mask-token)"
)
RENAMED = {
    "train": {
        "--tokens":      TOKEN_WEIGHTS,
        "--keep":        "--keep-layers",
        "--share":       "--train-fraction",
        "--metric":      "--selection-metric",
        "--weights":     "--loss-weights",
        "--order":       "--task-sampling (round-robin is now joint, in-turn round-robin, "
                         "one-by-one sequential, by-size proportional)",
        "--ends":        "--stopping-strategy (shortest is now first_exhausted, longest all_exhausted)",
        "--gradients":   "--gradient-surgery (sum is now none, compare log, project pcgrad)",
        "--freeze":      "--freeze-layers",
        "--late":        "--dropout-after-features",
        "--scaled":      "--rescale-scores",
        "--chunk":       "--mini-batch-size",
        "--one-way":     "--no-symmetric",
        "--distinct":    "--mask-duplicate-anchors",
        "--matrix":      "--similarity-weight",
        "--lines":       "--max-lines",
        "--every-layer": "--all-layers (sum is now mean, drawn sample, taught self-distill)",
        "--matryoshka":  "--matryoshka-dims",
        "--warmup":      "--warmup-ratio",
        "--accumulate":  "--gradient-accumulation-steps",
        "--save-every":  "--save-steps",
        "--half":        "--save-fp16",
        "--seeds":       "--num-seeds",
        "--runs":        "--output-dir",
        "--name":        "--run-name",
    },
    "evaluate": RENAMED_MODEL_OPTIONS | {
        "--tokens":      TOKEN_WEIGHTS,
        "--after":       "--postprocess",
        "--mix":         "--interpolate",
        "--predictions": "--cs224n-predictions",
    },
    "encode": RENAMED_MODEL_OPTIONS,
    "search": RENAMED_MODEL_OPTIONS | {"--in": "--corpus"},
    "export": RENAMED_MODEL_OPTIONS | {"--as": "--format", "--vocabulary": "--prune-vocabulary"},
    "cka": {"--matrix": "--all-pairs"},
}
# An option of evaluate.py that some of the commands below never used -> why.
WITHOUT_EFFECT = {
    "export": {"--precision": "has no effect on an exported model: remove it, or choose --dtype"},
}
# What evaluate.py did beside scoring -> the command that does it.
MOVED = {
    "--encode":      "encode MODEL FILE --out vectors.npy",
    "--neighbours":  "search MODEL QUERY --corpus FILE",
    "--in":          "search MODEL QUERY --corpus FILE",
    "--export":      "export MODEL FOLDER",
    "--push-to-hub": "export MODEL --push-to-hub OWNER/NAME",
    "--public":      "export MODEL --push-to-hub OWNER/NAME --public",
    "--as":          "export MODEL FOLDER --format FORMAT",
    "--vocabulary":  "export MODEL FOLDER --prune-vocabulary FILE",
    "--study":       "grid MODEL",
    "--text":        "grid MODEL --text FILE",
    "--advise":      "recommend MODEL FILE",
    "--probe":       "probe MODEL FILE",
    "--generator":   "probe MODEL FILE --generator MODEL",
    "--report":      "report RUNS",
    "--out":         "encode, grid or report, each with --out",
}
# Options of other programs -> what they are here, for all commands.
ELSEWHERE = {
    "--learning-rate":               "--lr",
    "--learning_rate":               "--lr",
    "--num-train-epochs":            "--epochs",
    "--num_train_epochs":            "--epochs",
    "--per-device-train-batch-size": "--batch-size",
    "--train-batch-size":            "--batch-size",
    "--model-name-or-path":          "--ckpt",
    "--model_name_or_path":          "--ckpt",
    "--max-seq-length":              "--max-length",
    "--max_seq_length":              "--max-length",
    "--layers":                      "--layer",
    "--dataset":                     "--task",
}
WITH_POSITIONAL_MODEL = ("evaluate", "encode", "search", "export", "recommend", "grid", "probe")
# fmt: on


def check_old_options(command: str, argv: list[str]) -> None:
    """Raise InputError if an option of version 0.11.0, or of another program, is given.

    command: its name, such as train.
    """
    for option in (word.partition("=")[0] for word in argv):
        if option in RENAMED.get(command, {}):
            raise InputError(f"{option} was renamed to {RENAMED[command][option]}")
        if option in WITHOUT_EFFECT.get(command, {}):
            raise InputError(f"{option} {WITHOUT_EFFECT[command][option]}")
        if command == "evaluate" and option in MOVED:
            raise InputError(f"evaluate.py {option} is now `python -m tmft {MOVED[option]}`")
        if command in WITH_POSITIONAL_MODEL and option in ("--ckpt", "--model", "--model-name-or-path"):
            raise InputError(f"{option}: give the model without an option, as the first argument")
        if option in ELSEWHERE:
            raise InputError(f"unknown option {option}: it is {ELSEWHERE[option]} here")
