"""Score a checkpoint or a saved model on similarity, clustering and classification tasks.

    # a run, on the test split of the task that it was trained on
    python evaluate.py runs/<name>
    # every layer of a checkpoint, in one forward pass; and the isotropy of its embeddings
    python evaluate.py google/electra-base-discriminator --layer all --isotropy
    # a teacher and its student on seven tasks: the difference with its 95 % interval, and speed
    python evaluate.py sentence-transformers/all-MiniLM-L6-v2 data/tiny --task sts
    # three groups of tasks
    python evaluate.py sentence-transformers/all-MiniLM-L6-v2 --task sts clustering transfer
    # embeddings without training: the mean of two hidden states, with token weights and post-processing
    python evaluate.py google-bert/bert-base-uncased --layer 1+12 --token-weights idf --postprocess zscore

Tables show scores x 100: for similarity tasks the correlations of the cosines with the human scores, for
others the metric of the task. (If the model was saved with another similarity than the cosine, such as dot,
that one is used and named.) Pairs with classes are told apart by a threshold on the cosine, which is chosen
on dev, or by the head of the run that was trained on them. STS12-16 have several subsets per year: Spearman
is computed over all pairs of a year ("all", as in most papers), and the mean over the subsets is shown, too.
Data sets that are absent are downloaded if their address is known.

Other commands use a model or make tables of runs: python -m tmft --help
"""

from argparse import Namespace
from contextlib import ExitStack
from functools import cache, partial
from pathlib import Path
from typing import Any

import tmft.cli  # noqa: F401  first, because it ends the import of torch with one line when Ctrl+C is pressed
from tmft.checkpoints.model_card import describe_compatibility
from tmft.cli.options import (
    add_embedding_options,
    add_model_options,
    add_task_options,
    add_training_free_options,
    command_device,
    has_similarity_scores,
    is_training_free,
    load_model,
    make_training_free_encoders,
    tasks_from_args,
    training_free_config,
)
from tmft.cli.parser import CommandLineParser, run_command
from tmft.datasets.task_lookup import read_split
from tmft.errors import InputError
from tmft.evaluation.compare_models import (
    MAX_TIMED_SENTENCES,
    compare_models,
    sentences_per_second,
    speed_by_shape,
)
from tmft.evaluation.cs224n_submission import write_predictions
from tmft.evaluation.evaluators import Evaluation, score_tasks
from tmft.io.atomic import check_output_folder, check_writable, write_file
from tmft.io.files import DATA_FOLDER
from tmft.io.formatting import percent, to_json
from tmft.models.families import parameter_counts
from tmft.reports.score_tables import difference_table, format_results, format_speed
from tmft.runs.predictor import FineTunedRun
from tmft.runs.result_json import RESULT_FILE
from tmft.runs.run_result import describe_environment
from tmft.speed.matmul import prepacked_weights
from tmft.tasks import OVERALL, Task
from tmft.training.multitask import average_scores
from tmft.training_free.postprocessing import append_modules
from tmft.training_free.training_free import (
    TrainingFreeConfig,
    TrainingFreeEncoders,
    score_random_embeddings,
)


def main(argv: list[str] | None = None) -> None:
    args = parse_args(argv)
    names = [args.model, args.other] if args.other else [args.model]
    config, is_changed = training_free_config(args), is_training_free(args)
    runs = [FineTunedRun(name) for name in names]  # without tasks, unless it is a folder of train.py
    tasks = tasks_from_args(args, ["stsb"], runs[0])
    check_tasks(args, tasks, config)
    readers = {name: cache(partial(read_split, task)) for name, task in tasks.items()}
    untrained = {name: Evaluation(task, readers[name], args.split) for name, task in tasks.items()}
    for evaluation in untrained.values():
        evaluation.read()  # so that missing or damaged data is reported before a model is loaded
    models = [load_model(args, command_device(args.device), checkpoint=name) for name in names]
    encoders, evaluations = [], []
    for name, model, run in zip(names, models, runs, strict=True):
        similarity = model.similarity_fn_name
        note = "" if similarity == "cosine" else f", similarity {similarity}"
        print(f"{name}: {model.load_report}")
        print(f"pooling {model.pooling}, at most {model.max_length} tokens{note}")
        encoders.append(make_training_free_encoders(args, model, config))
        evaluations.append(run.add_trained_parts(untrained, model, args.layer, is_changed))

    shown = evaluations
    if args.task is None and (folder := args.data or runs[0].arguments.get("data")):
        # Files of the user are named by their folder, as in the name of a run, not by the task of their form.
        shown = [{Path(folder).resolve().name: one for one in each.values()} for each in evaluations]
    with ExitStack() as stack:
        for model in models:
            stack.enter_context(prepacked_weights(model.encoder))
        if args.other:
            tables, content = compare_with_other(args, encoders, shown)
        else:
            tables, content = score_model(args, encoders[0], shown[0], runs[0], is_changed)
    print("\n" + tables)
    if args.json:
        write_file(args.json, to_json(content))
        print(f"\nwrote {args.json}")
    if args.cs224n_predictions:
        for path in write_predictions(models[0], evaluations[0], args.cs224n_predictions):
            print(f"wrote {path}")
    if args.save:
        [modules] = encoders[0].postprocessing.values()
        append_modules(models[0], modules)
        models[0].save_pretrained(args.save)
        differences = describe_compatibility(models[0])
        print(f"\nsaved {args.save}", *filter(None, [differences]), sep="\n")


def score_model(
    args: Namespace,
    encoders: TrainingFreeEncoders,
    evaluations: dict[str, Evaluation],
    run: FineTunedRun,
    is_changed: bool,
) -> tuple[str, dict[str, Any]]:
    """Score a model: return the tables of its scores, and the content of the JSON file.

    run: the one in the folder of the model. is_changed: whether its embeddings are changed without training;
    random embeddings are then scored with the same options.
    """
    model, variants, random = encoders.model, list(encoders.configs), {}
    config = next(iter(encoders.configs.values()))
    results = score_tasks(encoders.encoders, evaluations, args.isotropy)
    if is_changed:
        random = score_random_embeddings(model, evaluations, config)
    kind = "weight" if args.interpolate else "layer"
    tables = format_results(results, evaluations, kind, random, config.transductive)
    if len(results) > 1 and results.keys() == run.task_settings.keys() and len(variants) == 1:
        [variant] = variants
        metrics = ((name, evaluation.task.metric) for name, evaluation in evaluations.items())
        overall = average_scores((metric, results[name][variant][metric]) for name, metric in metrics)
        tables += f"\n\n{OVERALL} {percent(overall)}"
    by_variant = {v: {name: scores[v] for name, scores in results.items()} for v in variants}
    content = {"model": args.model, "split": args.split, "pooling": model.pooling, f"{kind}s": by_variant}
    content["parameters"] = parameter_counts(model.encoder.config)["stored"]
    if args.speed:
        content |= {"speed": speed_by_shape(model), "environment": describe_environment(model.device)}
        tables += f"\n\n{format_speed(content['speed'])}"
    return tables, content | ({"random": random} if random else {})


def compare_with_other(
    args: Namespace, encoders: list[TrainingFreeEncoders], evaluations: list[dict[str, Evaluation]]
) -> tuple[str, dict[str, Any]]:
    """Score two models: return the table of differences and speeds, and the content of the JSON file."""
    differences = compare_models([one.encoders for one in encoders], evaluations)
    texts = (text for evaluation in evaluations[0].values() for text in evaluation.examples.sentences)
    timed = list(dict.fromkeys(texts))[:MAX_TIMED_SENTENCES]
    names, speeds = [args.model, args.other], sentences_per_second([one.model for one in encoders], timed)
    rows = {name: difference.to_dict() for name, difference in differences.items()}
    content = {"models": names, "split": args.split, "sentences_per_second": speeds, "tasks": rows}
    return difference_table(names, differences, speeds), content


def check_options(args: Namespace) -> None:
    """Raise InputError for options that have no meaning together, and outputs that cannot be written.

    An output must not replace an input, nor another run.
    """
    for name in ("isotropy", "speed", "cs224n_predictions", "save", "interpolate") if args.other else ():
        if getattr(args, name):
            option = "--" + name.replace("_", "-")
            raise InputError(f"{option} with two models: remove {option}, or name one model")
    if args.other and args.layer == "all":
        raise InputError("--layer all with two models: give the number of a layer, or name one model")
    if args.layer == "all" and args.interpolate:
        raise InputError("--layer all and --interpolate: give --layer the layer to interpolate, such as 1+12")
    if args.dtype == "int8" and args.save:
        raise InputError("--dtype int8 and --save: weights of 8 bits cannot be saved: remove --dtype")
    models = [args.model, args.other, *(args.interpolate or [])[:1]]
    inputs = [*models, args.data, args.data_root, args.static_from]
    check_writable(args.json, inputs=[*inputs, DATA_FOLDER])
    check_output_folder(args.cs224n_predictions)
    check_output_folder(args.save, inputs)
    if args.save and (args.save / RESULT_FILE).exists():
        raise InputError(f"--save {args.save}: it is the folder of a run: name another folder")


def check_tasks(args: Namespace, tasks: dict[str, Task], config: TrainingFreeConfig) -> None:
    """Raise InputError if --isotropy has no meaning for a task, or --save would write another model."""
    others = [name for name, task in tasks.items() if not has_similarity_scores(task)]
    if args.isotropy and others:
        raise InputError(f"--isotropy with {others[0]}: choose a task with similarity scores, such as stsb")
    if args.save and args.interpolate:
        raise InputError("--interpolate and --save: two models cannot be saved as one: remove --save")
    if args.save and args.layer == "all":
        raise InputError("--layer all and --save: give --layer the number of the layer to save")
    if args.save and len(tasks) > 1 and config.transductive:
        names = " and ".join(config.transductive)
        raise InputError(f"--save: {names} would be estimated for each task: give one task, or {names}=FILE")
    if args.save and "quantile" in config.postprocess:
        raise InputError(
            f"--postprocess {config.postprocess} cannot be saved with a model: choose zscore, which can"
        )


# fmt: off
def parse_args(argv: list[str] | None = None) -> Namespace:
    p = CommandLineParser(__doc__)
    add_model_options(p, "; all: score every hidden state", int8=True)
    p.add_argument("other", metavar="OTHER", nargs="?", help="a second model, directly after MODEL, to be "
                   "compared with it: its scores and speed with the same options, and each difference with "
                   "its 95 %% interval")
    add_task_options(p, "the tasks that the run was trained on, else stsb")
    add_embedding_options(p)
    add_training_free_options(p)
    group = p.add_argument_group("output")
    group.add_argument("--isotropy", action="store_true", help="also compute measures of the isotropy of "
                       "the embeddings")
    group.add_argument("--speed", action="store_true", help="also measure sentences per second, by length "
                       "and number of sentences at once")
    group.add_argument("--json", type=Path, metavar="FILE", help="write all scores, also those of "
                       "subsets, not x 100")
    group.add_argument("--cs224n-predictions", type=Path, metavar="FOLDER", help="write the predictions of "
                       "a run on the tasks of the course CS 224N, in the format of its leaderboard")
    group.add_argument("--save", type=Path, metavar="FOLDER", help="save the model that was scored")
    args = p.parse_args(argv)
    check_options(args)
    return args
# fmt: on


if __name__ == "__main__":
    run_command(main)
