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
from collections.abc import Mapping
from functools import cache, partial
from pathlib import Path
from statistics import mean
from typing import NamedTuple

from tmft.cli.options import (
    add_embedding_options,
    add_model_options,
    add_task_options,
    add_training_free_options,
    has_similarity_scores,
    is_training_free,
    load_interpolation_model,
    load_model,
    save_with_modules,
    tasks_from_args,
    training_free_config,
)
from tmft.cli.parser import CommandLineParser, run_command
from tmft.datasets.task_lookup import read_split
from tmft.device import choose_device, progress_bar
from tmft.errors import InputError
from tmft.evaluation.classification import ReadSplit, read_splits
from tmft.evaluation.compare_models import (
    MAX_TIMED_SENTENCES,
    ModelDifference,
    predict_examples,
    score_difference,
    sentences_per_second,
)
from tmft.evaluation.cs224n_submission import write_predictions
from tmft.evaluation.evaluators import (
    EVALUATORS,
    ISOTROPY_METRICS,
    evaluate_isotropy,
    is_trained_on_train,
    unlabeled_texts,
    use_saved_similarity,
)
from tmft.io.atomic import check_output_folder, check_writable, write_file
from tmft.io.formatting import percent, to_json
from tmft.io.paths import DATA_FOLDER
from tmft.loss import Objective
from tmft.reports.score_tables import (
    difference_table,
    format_isotropy,
    format_scores_by_metric,
    format_scores_by_variant,
)
from tmft.runs.result_schema import RESULT_FILE
from tmft.runs.run_result import FineTunedRun
from tmft.sentence_encoder import SentenceEncoder
from tmft.tasks import OVERALL, Task
from tmft.training.multitask import average_scores
from tmft.training_free.static_models import random_static_model
from tmft.training_free.training_free import TrainingFreeConfig, TrainingFreeEncoders

Results = dict[str, dict[float, dict]]  # task -> layer, or weight of --interpolate -> scores


def main(argv: list[str] | None = None) -> None:
    args = parse_args(argv)
    config = training_free_config(args)
    run = FineTunedRun(args.model)  # without tasks, unless MODEL is a folder of train.py
    tasks = tasks_from_args(args, ["stsb"], run)
    readers = {name: cache(partial(read_split, task)) for name, task in tasks.items()}
    others = [name for name, task in tasks.items() if not has_similarity_scores(task)]
    if args.isotropy and others:
        raise InputError(f"--isotropy with {others[0]}: choose a task with similarity scores, such as stsb")
    for name, read in readers.items():  # so that missing or damaged data is reported before a model is loaded
        if is_trained_on_train(tasks[name]):
            read_splits(tasks[name], read, args.split)
        else:
            read(args.split)
    if args.other:
        compare_with_other(args, run, tasks, readers, config)
        return
    check_save(args, tasks, config)

    model = load_model(args, choose_device(args.device))
    scored = score_model(args, model, run, tasks, readers, config)
    encoders, results, random_scores = scored.encoders, scored.results, scored.random
    last = len(model.encoder.layers)
    print_scores(results, tasks, encoders, random_scores)
    if len(tasks) > 1 and tasks.keys() == run.task_settings.keys() and len(encoders.variants) == 1:
        [variant] = encoders.variants
        score = average_scores(
            (task.metric, results[name][variant][task.metric]) for name, task in tasks.items()
        )
        print(f"\n{OVERALL} {percent(score)}")
    if args.json:
        kind = "weights" if encoders.weights else "layers"
        by_variant = {v: {name: results[name][v] for name in tasks} for v in encoders.variants}
        content = {"model": args.model, "split": args.split, "pooling": model.pooling, kind: by_variant}
        write_file(args.json, to_json(content | ({"random": random_scores} if random_scores else {})))
        print(f"\nwrote {args.json}")
    if args.cs224n_predictions:
        tasks_and_objectives = {
            name: (task, objective) for name, task in tasks.items() if (objective := scored.objectives[name])
        }
        for path in write_predictions(model, tasks_and_objectives, args.cs224n_predictions):
            print(f"wrote {path}")
    if args.save:
        differences = save_with_modules(model, encoders.postprocessing.get(last, []), args.save)
        print(f"\nsaved {args.save}", *filter(None, [differences]), sep="\n")


class ScoredModel(NamedTuple):
    """A model, what embeds sentences with it, and its scores.

    random: {task: mean score of random embeddings}. objectives: {task: what predicts; None without one}.
    """

    model: SentenceEncoder
    encoders: TrainingFreeEncoders
    results: Results
    random: dict[str, float]
    objectives: dict[str, Objective | None]


def score_model(
    args: Namespace,
    model: SentenceEncoder,
    run: FineTunedRun,
    tasks: dict[str, Task],
    readers: Mapping[str, ReadSplit],
    config: TrainingFreeConfig,
) -> ScoredModel:
    """Score a model on all tasks. args: its options. run: the one in its folder."""
    similarity = "" if model.similarity_fn_name == "cosine" else f", similarity {model.similarity_fn_name}"
    pooling = f"pooling {model.pooling}, at most {model.max_length} tokens{similarity}"
    print(f"{args.model}: {model.load_report}\n{pooling}")
    last = len(model.encoder.layers)
    layers = list(range(last + 1)) if args.layer == "all" else [last]
    encoders = TrainingFreeEncoders(model, layers, config, *load_interpolation_model(args, model.device))
    has_new_embeddings = is_training_free(args)
    random_models = [random_static_model(model, seed=seed) for seed in range(3 * has_new_embeddings)]
    baselines = [TrainingFreeEncoders(random, [0], config.without_prompt) for random in random_models]

    results: Results = {}
    random_scores: dict[str, float] = {}  # task -> mean score of random embeddings
    objectives: dict[str, Objective | None] = {}
    with progress_bar(len(tasks), "tasks", desc="evaluate") as progress:
        for name, task in tasks.items():
            objective = run.load_objective(name, task, model.dimensions) if task.objective else None
            has_head = objective is not None and objective.has_head
            if args.layer is not None and has_head:
                head = f"the head of {task.objective} fits only the layer that it was trained on"
                raise InputError(f"--layer {args.layer}: {head}: remove --layer")
            is_as_trained = not has_new_embeddings and args.layer is None
            threshold = run.find_threshold(name) if is_as_trained else None
            objectives[name] = objective = use_saved_similarity(objective, model.similarity_fn_name)
            texts = unlabeled_texts(task, readers[name], args.split)
            evaluate = partial(
                EVALUATORS[task.task_type],
                task=task,
                read_split=readers[name],
                split=args.split,
                objective=objective,
                threshold=threshold,
            )
            results[name] = {}
            for variant, encode in encoders.encoders(texts).items():
                results[name][variant] = evaluate(encode)
                if args.isotropy:
                    results[name][variant] |= evaluate_isotropy(encode, task, readers[name](args.split))
            if baselines and not has_head:
                try:
                    scores = [evaluate(baseline.encoders(texts)[0])[task.metric] for baseline in baselines]
                except InputError:  # too few sentences for the many dimensions of the random embeddings
                    scores = []
                random_scores |= {name: mean(scores)} if scores else {}
            progress.update()
    return ScoredModel(model, encoders, results, random_scores, objectives)


def compare_with_other(
    args: Namespace,
    run: FineTunedRun,
    tasks: dict[str, Task],
    readers: Mapping[str, ReadSplit],
    config: TrainingFreeConfig,
) -> None:
    """Score MODEL and OTHER with the same options, and print their scores, the differences and the speeds."""
    runs, models = [run, FineTunedRun(args.other)], [args.model, args.other]
    options = [Namespace(**vars(args) | {"model": name}) for name in models]
    loaded = [load_model(one, choose_device(args.device)) for one in options]  # before one is scored
    scored = [
        score_model(one, model, run, tasks, readers, config)
        for one, model, run in zip(options, loaded, runs, strict=True)
    ]
    rows: dict[str, ModelDifference] = {}
    for seed, (name, task) in enumerate(tasks.items()):
        examples, texts = readers[name](args.split), unlabeled_texts(task, readers[name], args.split)
        both = []
        for one in scored:
            [(variant, encode)] = one.encoders.encoders(texts).items()
            predictions = predict_examples(encode, task, one.objectives[name], examples)
            both.append((one.results[name][variant], predictions))
        first, second = both
        rows[name] = score_difference(task.metric, first, second, examples.labels, seed)
    distinct = list(dict.fromkeys(text for read in readers.values() for text in read(args.split).sentences))
    speeds = sentences_per_second([one.model for one in scored], distinct[:MAX_TIMED_SENTENCES])
    print("\n" + difference_table(models, rows, speeds))
    if args.json:
        content = {"models": models, "split": args.split, "sentences_per_second": speeds}
        write_file(
            args.json, to_json(content | {"tasks": {name: row.to_dict() for name, row in rows.items()}})
        )
        print(f"\nwrote {args.json}")


def check_save(args, tasks: dict[str, Task], config: TrainingFreeConfig) -> None:
    """Raise InputError if --save would write another model than the one that is scored."""
    if args.save and args.interpolate:
        raise InputError("--interpolate and --save: two models cannot be saved as one: remove --save")
    if args.save and args.layer == "all":
        raise InputError("--layer all and --save: give --layer the number of the layer to save")
    if args.save and len(tasks) > 1 and config.transductive:
        names = " and ".join(config.transductive)
        raise InputError(f"--save: {names} would be estimated for each task: give one task, or {names}=FILE")
    if args.save and "quantile" in config.postprocess.split("+"):
        raise InputError("--postprocess quantile cannot be saved with a model: choose zscore, which can")


def print_scores(
    results: Results, tasks: dict[str, Task], encoders: TrainingFreeEncoders, random_scores: dict[str, float]
) -> None:
    """Print the tables of scores, and notes on random embeddings and on what was estimated without training.

    random_scores: {task: mean score of random embeddings}; empty if none were scored.
    """
    is_curve = len(encoders.variants) > 1
    variant = "weight" if encoders.weights else "layer"
    if is_curve:
        print("\n" + format_scores_by_variant(results, tasks, variant))
    else:
        print("\n" + format_scores_by_metric(results))
    for name, variants in results.items():
        if ISOTROPY_METRICS[0] in next(iter(variants.values())):
            print(f"\n{name}\n{format_isotropy(variants)}")
    if random_scores:
        scores = ", ".join(f"{name} {percent(score)}" for name, score in random_scores.items())
        print(f"\nrandom embeddings with the same options: {scores}")
    estimated = encoders.config.transductive
    if estimated and not all(map(is_trained_on_train, tasks.values())):
        print(f"{' and '.join(estimated)}: estimated from the sentences that are scored (transductive)")


# fmt: off
def parse_args(argv: list[str] | None = None):
    p = CommandLineParser(__doc__)
    add_model_options(p, "; all: score every hidden state")
    p.add_argument("other", metavar="OTHER", nargs="?", help="a second model, directly after MODEL, to be "
                   "compared with it: its scores and speed with the same options, and each difference with "
                   "its 95 %% interval")
    add_task_options(p, "the tasks that the run was trained on, else stsb")
    add_embedding_options(p)
    add_training_free_options(p)
    group = p.add_argument_group("output")
    group.add_argument("--isotropy", action="store_true", help="also compute measures of the isotropy of "
                       "the embeddings")
    group.add_argument("--json", type=Path, metavar="FILE", help="write all scores, also those of "
                       "subsets, not x 100")
    group.add_argument("--cs224n-predictions", type=Path, metavar="FOLDER", help="write the predictions of "
                       "a run on the tasks of the course CS 224N, in the format of its leaderboard")
    group.add_argument("--save", type=Path, metavar="FOLDER", help="save the model that was scored")
    args = p.parse_args(argv)
    if args.other:
        check_other(args)
    if args.precision == "int8" and args.save:
        problem = "weights of 8 bits cannot be saved"
        raise InputError(f"--precision int8 and --save: {problem}: remove --precision")
    check_outputs(args)
    return args
# fmt: on


def check_other(args) -> None:
    """Raise InputError for an option that has no meaning for two models."""
    for name in ("isotropy", "cs224n_predictions", "save", "interpolate"):
        if getattr(args, name):
            option = "--" + name.replace("_", "-")
            raise InputError(f"{option} with two models: remove {option}, or name one model")
    if args.layer == "all":
        raise InputError("--layer all with two models: give the number of a layer, or name one model")


def check_outputs(args) -> None:
    """Raise InputError if an output cannot be written, or would replace an input or another run."""
    inputs = [
        args.model,
        args.other,
        args.data,
        args.data_root,
        args.static_from,
        *(args.interpolate or [])[:1],
    ]
    check_writable(args.json, inputs=[*inputs, DATA_FOLDER])
    check_output_folder(args.cs224n_predictions)
    check_output_folder(args.save, inputs)
    if args.save and (args.save / RESULT_FILE).exists():
        raise InputError(f"--save {args.save}: it is the folder of a run: name another folder")


if __name__ == "__main__":
    run_command(main)
