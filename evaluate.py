"""Score a checkpoint or a saved model: similarity, clustering, classification; as it is, or treated.

    python evaluate.py runs/<name>                                     a run, on the task it learnt
    python evaluate.py google/electra-base-discriminator --layer all   every layer in one forward pass
    python evaluate.py google/electra-base-discriminator --layer all --isotropy   and how each fills space
    python evaluate.py sentence-transformers/all-MiniLM-L6-v2 --task sts clustering transfer
    python evaluate.py google-bert/bert-base-uncased --layer 1+12 --tokens idf --after zscore    untrained
    python evaluate.py google-bert/bert-base-uncased --study           all such treatments, in one table
    python evaluate.py google-bert/bert-base-uncased --advise FILE     which of them for your sentences
    python evaluate.py data/twins/mlm --probe FILE                     what is read off each layer's tokens
    python evaluate.py --report runs/                                  tables and figures of finished runs
    python evaluate.py runs/<name> --encode sentences.txt --out vectors.npy       a row for each line
    python evaluate.py runs/<name> --neighbours "a query" --in sentences.txt      the lines nearest to it
    python evaluate.py runs/<name> --export served --as onnx                      for other software

Scores are x 100: correlations of the cosine with the human score, or what else the row of the task names.
A task with classes takes its threshold from dev, or its head from the run that learnt it. STS12-16 have
several subsets a year: Spearman is over all pairs of the year at once ("all", as in most papers), and the
mean over its subsets stands beside it. What is absent and has a known address is fetched.
"""

import math
import tempfile
import time
from functools import cache, partial
from itertools import combinations
from pathlib import Path
from statistics import mean

import torch
from torch import nn

from tmft.checkpoints.model_card import ModelCardData
from tmft.checkpoints.save import weight_bytes
from tmft.cli.parser import CommandLine, run_command
from tmft.data import SPLITS
from tmft.tasks import GROUPS, TASKS, Task
from tmft.datasets.task_lookup import get_task, expand_groups, read_sentences, read_split
from tmft.device import choose_device
from tmft.distributed import init_distributed
from tmft.embedding.postprocessing import POSTPROCESSING, check_postprocessing
from tmft.embedding.prompts import PROMPTS, parse_prompt
from tmft.embedding.token_weights import TOKEN_WEIGHTS, check_token_weights
from tmft.errors import InputError
from tmft.evaluation.cs224n_submission import write_predictions
from tmft.evaluation.evaluators import ISOTROPY_METRICS, EVALUATORS, evaluate_isotropy, unlabeled_texts
from tmft.evaluation.grid import study
from tmft.evaluation.probes import probe_layers, load_generator
from tmft.evaluation.recommend import advice, score_variants
from tmft.evaluation.training_free import TrainingFreeEncoders, TrainingFreeConfig, static_model_from_text, random_static_model
from tmft.formatting import to_json, format_duration, percent, text_table
from tmft.io.atomic import check_writable, write_file
from tmft.io.text import read_lines
from tmft.pooling import POOLINGS
from tmft.reports.grid_page import write_grid_page
from tmft.reports.report import Page, make_report
from tmft.reports.score_tables import curve_table, isotropy_table, task_table
from tmft.runs.result_schema import read_result
from tmft.runs.run_cards import layer_curve, card_data_from_result
from tmft.runs.run_folder import load_objective
from tmft.sentence_encoder import SentenceEncoder
from tmft.serving.encode_file import encode_file, nearest_lines
from tmft.serving.export import DTYPES, FORMATS, export, open_export, folder_size
from tmft.serving.push_to_hub import resolve_repo_id, upload
from tmft.serving.quantization import ENCODE_PRECISIONS, set_encode_precision
from tmft.serving.vocabulary_pruning import prune_vocabulary
from tmft.training.multitask import OVERALL, of_task, overall


def main(argv: list[str] | None = None) -> None:
    args = parse_args(argv)
    if args.report:
        return report(args.report, args.out or args.report / "report")
    check_writable(
        args.predictions and args.predictions / "x.csv",
        args.json,
        args.save and args.save / "config.json",
        args.out if args.encode else args.out and args.out / "study.md",
    )
    if args.encode or args.nearest_lines:
        return use(args)
    if args.export or args.push_to_hub:
        return export_model(args)
    if args.probe:
        return show_probes(args)
    learnt = what_it_learnt(args.model)
    parts = parts_of(learnt)
    tasks = find_tasks(args, parts, learnt.get("arguments", {}))
    reads = {name: cache(partial(read_split, task)) for name, task in tasks.items()}
    if args.isotropy and (other := [name for name, task in tasks.items() if not graded(task)]):
        raise InputError(f"--isotropy with {other[0]}: choose a task of graded similarity, such as stsb")
    if args.advise:
        return advise(args, tasks)
    for read in reads.values():
        read(args.split)  # now, as something may be wrong with it
    if args.study:
        return write_study(args, tasks, reads)
    treatment = find_treatment(args)
    check_save(args, tasks, treatment)
    model = find_model(args)
    print(f"{args.model}: {model.load_report}\npooling {model.pooling}, at most {model.max_length} tokens")
    last = len(model.encoder.layers)
    layers = list(range(last + 1)) if args.layer == "all" else [last]
    treated = TrainingFreeEncoders(model, layers, treatment, *find_static(args))
    random = [random_static_model(model, seed=seed) for seed in range(3 if untrained(args) else 0)]
    baselines = [TrainingFreeEncoders(one, [0], treatment.without_prompt) for one in random]

    objectives: dict[str, nn.Module] = {}
    results: dict[str, dict[float, dict]] = {}  # task -> layer, or share of a mix -> scores
    beside: dict[str, float] = {}  # task -> score of random embeddings
    for name, task in tasks.items():
        texts = unlabeled_texts(task, reads[name], args.split)
        same = name in parts and args.layer is None and not untrained(args)
        whose = name if len(parts) > 1 else ""  # of a run of several tasks
        known = {
            "task": task,
            "read_split": reads[name],
            "split": args.split,
            "objective": find_objective(args, task, model, whose),
            "threshold": of_task(learnt["dev"], whose).get("threshold") if same else None,
        }
        results[name], objectives[name] = {}, known["objective"]
        for line, encode in treated.encoders(texts).items():
            results[name][line] = EVALUATORS[task.task_type](encode, **known)
            if args.isotropy:
                results[name][line] |= evaluate_isotropy(encode, task, reads[name](args.split))
        if baselines and not needs_head(known["objective"]):
            try:
                of_random = [EVALUATORS[task.task_type](one.encoders(texts)[0], **known) for one in baselines]
            except InputError:  # too few sentences for as many dimensions
                continue
            beside[name] = mean(scores[task.metric] for scores in of_random)
    show_scores(results, tasks, treated, beside)
    if len(parts) > 1 and tasks.keys() == parts.keys() and len(treated.variants) == 1:
        metric = {name: task.metric for name, task in tasks.items()}
        [scores] = zip(*(lines.values() for lines in results.values()), strict=True)
        value = overall((name, own[name]) for name, own in zip(metric.values(), scores, strict=True))
        print(f"\n{OVERALL} {percent(value)}")
    if args.json:
        kind = "shares" if treated.weights else "layers"
        lines = {line: {name: results[name][line] for name in tasks} for line in treated.variants}
        content = {"model": args.model, "split": args.split, "pooling": model.pooling, kind: lines}
        write_file(args.json, to_json(content | ({"random": beside} if beside else {})))
        print(f"\nwrote {args.json}")
    if args.predictions:
        both = {name: (task, objectives[name]) for name, task in tasks.items()}
        for path in write_predictions(model, both, args.predictions):
            print(f"wrote {path}")
    if args.save:
        model.head_modules.extend(treated.postprocessing.get(last, []))
        model.save_pretrained(args.save)
        print(f"\nsaved {args.save}", *filter(None, [model.compatibility_note]), sep="\n")


def show_scores(results: dict, tasks: dict[str, Task], treated: TrainingFreeEncoders, beside: dict[str, float]) -> None:
    """Print the tables, and what a reader has to know of them."""
    single = len(treated.variants) == 1
    print()
    print(
        task_table(results) if single else curve_table(results, tasks, "share" if treated.weights else "layer")
    )
    for name, lines in results.items():
        if ISOTROPY_METRICS[0] in next(iter(lines.values())):
            print(f"\n{name}\n{isotropy_table(lines)}")
    if beside:
        scores = ", ".join(f"{name} {percent(score)}" for name, score in beside.items())
        print(f"\nrandom embeddings, treated alike: {scores}")
    own_train = [
        n for n, t in tasks.items() if t.task_type in ("classification", "relatedness") and "{split}" in t.files
    ]
    if (own := treated.config.transductive) and len(own_train) < len(tasks):
        print(f"{' and '.join(own)}: learnt on the sentences that are scored (transductive)")


def check_save(args, tasks: dict[str, Task], treatment: TrainingFreeConfig) -> None:
    """Raises InputError, before any work, if --save would write something else than what is scored."""
    if args.save and args.mix:
        raise InputError("--mix and --save: a mix is of two models and cannot be saved, leave one out")
    if args.save and args.layer == "all":
        raise InputError("--layer all and --save: name the layer to be saved")
    if args.save and len(tasks) > 1 and treatment.transductive:
        raise InputError("--save: each task would learn its own, name one task or a FILE")
    if args.save and "quantile" in treatment.postprocess.split("+"):
        raise InputError("--after quantile cannot be saved with a model: choose zscore, which can")


def untrained(args) -> bool:
    """Whether the embeddings are treated without training, so that random ones must stand beside them."""
    mixed = args.layer is not None and ("word" in args.layer or "+" in args.layer)
    return mixed or bool(args.tokens or args.prompt or args.after or args.average or args.mix)


def needs_head(objective: nn.Module | None) -> bool:
    return objective is not None and bool(list(objective.parameters()))


def graded(task: Task) -> bool:
    return task.task_type == "similarity" and not task.classes


def report(runs: Path, out: Path) -> None:
    """Print the tables of all finished runs below a folder, and what was written."""
    show(make_report(runs, out))


def advise(args, tasks: dict[str, Task]) -> None:
    """Which treatment for the sentences of a file, by the graded dev pairs of a task."""
    [(name, task), *more] = tasks.items()
    if more or not graded(task):
        raise InputError(
            f"--advise with {', '.join(tasks)}: choose one task of graded similarity, such as stsb"
        )
    sentences, pairs = read_sentences(args.advise), read_split(task, "dev")
    model = plain_model(args)
    print(
        f"{args.model}: {len(sentences)} sentences of {args.advise}, {len(pairs)} graded pairs of {name} dev"
    )
    found = score_variants(model, sentences, task, pairs)
    said = [args.model, "--pooling", "mean"]
    for option in ("task", "data", "data_root", "max_length"):
        if (value := getattr(args, option)) is not None:
            said += [
                f"--{option.replace('_', '-')}",
                *map(str, value if isinstance(value, list) else [value]),
            ]
    lines, words = advice(found, said, len(model.encoder.layers), args.advise)
    print(f"\n{text_table(lines)}\n\n{words}")


def show_probes(args) -> None:
    """What can be read off each hidden state of the lines of a file."""
    model, lines = plain_model(args), read_sentences(args.probe)
    generator = load_generator(args.generator, model) if args.generator else None
    print(f"{args.model}: {len(lines)} sentences of {args.probe}, every fifth to test", flush=True)
    found = probe_layers(model, lines, generator)
    cells = [[str(n), percent(one.word), percent(one.replaced)] for n, one in enumerate(found)]
    print(f"\n{text_table([['layer', 'its word, %', 'replaced or not, area x 100'], *cells])}")


def plain_model(args) -> SentenceEncoder:
    """The encoder with the plain mean, without what a saved folder puts around it."""
    torch.manual_seed(0)  # of random weights
    model = SentenceEncoder.from_pretrained(args.model, args.layer, "mean", args.max_length, args.init)
    model.prompt, model.layers = "", None
    return model.to(choose_device(args.device))


def use(args) -> None:
    """Encode the lines of a file, or show those that are nearest to a query."""
    processes = init_distributed(args.device)
    model = find_model(args).to(processes.device)
    if args.nearest_lines:
        for cosine, line in nearest_lines(model, args.nearest_lines, args.within):
            print(f"{cosine:.4f}  {line}")
        return
    start = time.perf_counter()
    count, before = encode_file(model, args.encode, args.out, processes)
    if processes.rank == 0:
        seconds = time.perf_counter() - start
        kept = f", {before} of them before" if before else ""
        rate = f"{(count - before) / seconds:,.0f} a second"
        print(f"wrote {args.out}: {count} x {model.dimensions} float32{kept}, {format_duration(seconds)}, {rate}")


def export_model(args) -> None:
    """Write the model in another form, open it again, show what that changes, and put it on the hub."""
    learnt, names = what_it_learnt(args.model), args.task or ["sample"]
    [(name, task), *more] = find_tasks(args, {}, {}, names).items()
    if more or not graded(task):
        option = "--export" if args.export else "--push-to-hub"
        raise InputError(f"{option} with {' '.join(names)}: choose one task of graded similarity, or none")
    read = cache(partial(read_split, task))
    sentences = read(args.split).sentences
    repository = args.push_to_hub and resolve_repo_id(args.push_to_hub)
    whole = model = find_model(args).to("cpu")
    if args.vocabulary:
        model = prune_vocabulary(whole, filter(str.strip, read_lines(args.vocabulary)))
        words = (len(one.tokenizer.vocabulary) for one in (whole, model))
        print("vocabulary of {} pieces cut to {}".format(*words))
    told = card_data_from_result(learnt, layer_curve(Path(args.model), learnt)) if learnt else ModelCardData()
    with tempfile.TemporaryDirectory() as scratch:
        folder = args.export or Path(scratch) / "model"
        export(model, folder, args.form, args.dtype, told, repository)
        encoders = whole.encode, open_export(folder, args.form)
        both = [torch.from_numpy(encode(sentences)) for encode in encoders]
        before, after = (
            EVALUATORS[task.task_type](lambda texts, u=u: u, task=task, read_split=read, split=args.split)[task.metric]
            for u in both
        )
        sizes = f"{folder_size(folder) / 1e6:.1f} MB, the weights were {weight_bytes(whole) / 1e6:.1f}"
        print(f"{args.model} as {args.form}, {args.dtype}: {sizes}")
        print(f"largest difference of {len(sentences)} embeddings: {(both[0] - both[1]).abs().max():.1e}")
        print(f"{name} {args.split} {task.metric}: {percent(after)}, before {percent(before)}")
        if args.export:
            print(f"wrote {folder}")
        if repository:
            print(f"uploaded to {upload(folder, repository, args.public)}")


def write_study(args, tasks: dict[str, Task], reads: dict) -> None:
    """Every treatment of the checkpoint on the tasks: print the tables, write page and figures."""
    if heads := [name for name, task in tasks.items() if task.objective == "softmax"]:
        raise InputError(f"--study with {heads[0]}: it needs a trained head, leave it out")
    text = read_sentences(args.text) if args.text else []
    made = study(plain_model(args), tasks, reads, text)
    page = write_grid_page(made, args.model, args.out or Path("runs") / f"study-{Path(args.model).name}")
    show(page)


def show(page: Page) -> None:
    for title, lines in page.tables.items():
        print(f"{title}\n{text_table(lines)}\n")
    print(*page.absent, f"wrote {', '.join(map(str, page.files))}", sep="\n")


def what_it_learnt(model: str) -> dict:
    """The result of the run that made this model, {} if train.py did not."""
    result = read_result(Path(model)) if (Path(model) / "result.json").is_file() else {}
    return result if "test" in result else {}  # a pre-training run has learnt no task


def parts_of(learnt: dict) -> dict[str, dict]:
    """{name: settings} of the task, or the tasks, that a run learnt."""
    if not learnt:
        return {}
    task = learnt["settings"]["task"]
    name = (learnt.get("arguments", {}).get("task") or "stsb").partition(":")[0]
    return task.get("parts") or {name: task}


def find_tasks(args, parts: dict[str, dict], arguments: dict, names: list | None = None) -> dict[str, Task]:
    """{name: task} as asked for; a model of train.py is scored on what it learnt, unless told otherwise."""
    names, data, data_root, score_range = names or args.task, args.data, args.data_root, args.score_range
    if parts and names is None and data is None:
        data, data_root = arguments.get("data"), data_root or arguments.get("data_root")
        score_range = score_range or arguments.get("score_range")
        own = {
            name: [part["objective"], part["metric"], part.get("settings")] for name, part in parts.items()
        }
        return {name: get_task(name, data, data_root, score_range, *row) for name, row in own.items()}
    names = expand_groups(names or (["sts", "clustering", "classification"] if args.study else ["stsb"]))
    if data is not None and len(names) > 1:
        raise InputError("--data replaces the files of one task: give one --task with it, or use --data-root")
    return {name: get_task(name, data, data_root, score_range) for name in names}


def find_treatment(args) -> TrainingFreeConfig:
    """--tokens NAME[=FILE] and --after NAME[=FILE]: what is learnt, and from which sentences."""
    (tokens, tokens_file), (after, after_file) = (
        (text or "").partition("=")[::2] for text in (args.tokens, args.after)
    )
    texts = [
        Path(file) and read_sentences(Path(file)) if file else None for file in (tokens_file, after_file)
    ]
    check_token_weights(tokens or None)
    check_postprocessing(after)
    return TrainingFreeConfig(tokens or None, after, *texts)


def find_model(args) -> SentenceEncoder:
    """The model as it is scored, before what is learnt without labels."""
    torch.manual_seed(0)  # of random weights
    layer = None if args.layer == "all" else args.layer
    model = SentenceEncoder.from_pretrained(args.model, layer, args.pooling, args.max_length, args.init)
    model = model.to(choose_device(args.device))
    set_encode_precision(model, args.precision)
    if args.prompt:
        model.prompt = parse_prompt(args.prompt)
        if model.token_weights is not None and (model.token_weights.prefix_length or model.token_weights.suffix_length):
            model.set_token_weights("no-prompt")  # of this prompt
    if args.dimensions is not None:
        model.truncate_dimensions(args.dimensions)
    return static_model_from_text(model, read_sentences(args.average)) if args.average else model


def find_static(args) -> tuple[SentenceEncoder | None, list[float]]:
    """--mix MODEL W...: the other model, and its shares."""
    if not args.mix:
        return None, []
    try:
        shares = [float(share) for share in args.mix[1:]]
        if not all(map(math.isfinite, shares)):
            raise ValueError
    except ValueError:
        raise InputError(f"--mix {' '.join(args.mix)}: write a model and then numbers, its shares") from None
    return SentenceEncoder.from_pretrained(args.mix[0]).to(choose_device(args.device)), shares or [0.5]


def find_objective(args, task: Task, model: SentenceEncoder, whose: str) -> nn.Module | None:
    """That of the task, with the head that the run learnt; None if the task has none."""
    if not task.objective:
        return None
    objective = load_objective(task, model.dimensions, Path(args.model), whose)
    if args.layer is not None and needs_head(objective):
        raise InputError(
            f"--layer {args.layer}: the head of {task.objective} fits the layer it learnt: leave it out"
        )
    return objective


# fmt: off
def parse_args(argv: list[str] | None = None):
    p = CommandLine(__doc__)
    p.add_argument("model", nargs="?", help="hub id[@revision], or folder of train.py or transformers")
    what, option = p.group("what is scored")
    option("--task", nargs="+", help=f"of {', '.join([*TASKS, *TASKS])}, or of the groups "
           f"{', '.join(GROUPS)}; default: what the run learnt, else stsb")
    option("--split", choices=SPLITS, default="test", help="part of the task")
    option("--data", metavar="FOLDER", help="folder of TSV files to use instead of the task's")
    option("--data-root", metavar="FOLDER", help="folder of task folders; default: data/")
    option("--score-range", type=float, nargs=2, metavar=("LOW", "HIGH"), help="default: the task's")
    option("--layer", help="hidden state L; word: the table of words; 1+12 or word+12: their mean; all: "
           "every one; default: the last")
    option("--init", choices=["pretrained", "random"], default="pretrained", help="random: shape only")
    option("--max-length", type=int, metavar="TOKENS", help="default: all that fits")
    option("--device", default="auto", help="auto, cpu, cuda, cuda:1, ...; auto: a GPU if there is one")
    how, option = p.group("how it is scored")
    option("--dimensions", type=int, metavar="D", help="the first D of each embedding; default: all")
    option("--precision", choices=ENCODE_PRECISIONS, default="fp32", help="to encode in; int8: on a CPU with VNNI")
    option("--pooling", help=f"{', '.join(POOLINGS)}, or as max+mean; default: what was saved, else mean")
    option("--tokens", metavar="NAME[=FILE]", help=f"weights: {', '.join(TOKEN_WEIGHTS)}; learnt on the "
           "sentences that are scored, or on FILE; default: what was saved, else all")
    option("--prompt", metavar="TEXT", help=f"{', '.join(PROMPTS)}, or a text with [X] for the sentence")
    option("--after", metavar="NAME[=FILE]", help=f"{', '.join(POSTPROCESSING)}, or several as in abtt+normalize; "
           "learnt as tokens are")
    option("--average", type=Path, metavar="FILE", help="the static model of mean vectors of words in FILE")
    option("--mix", nargs="+", metavar=("MODEL", "W"), help="(1 - W) u + W v with another model, for each W")
    option("--isotropy", action="store_true", help="also how the embeddings fill their space")
    option("--json", type=Path, metavar="FILE", help="write the scores, not x 100, with all subsets")
    option("--predictions", type=Path, metavar="FOLDER", help="write those of a run on the tasks of CS 224N, "
           "as the course takes them in")
    option("--save", type=Path, metavar="FOLDER", help="write the treated model")
    _, option = p.group("instead")
    option("--study", action="store_true", help="tables and figures of all these, and of random embeddings")
    option("--text", type=Path, metavar="FILE", help="general text for the study to learn from, too")
    option("--advise", type=Path, metavar="FILE", help="which of them for the sentences of FILE")
    option("--probe", type=Path, metavar="FILE", help="what a linear map reads off each layer: the words of "
           "FILE, and which of them --generator replaced")
    option("--generator", metavar="CKPT", help="with a head that fills in words; default: none is replaced")
    option("--report", type=Path, metavar="RUNS", help="tables and figures of the finished runs below")
    option("--encode", type=Path, metavar="FILE", help="embed each line of a text, .gz or .xz, or of - for "
           "standard input, and write them to --out; goes on where it was stopped")
    option("--neighbours", metavar="QUERY", help="print the lines of --in FILE that are nearest to it")
    option("--in", dest="within", type=Path, metavar="FILE", help="text with a sentence per line")
    option("--export", type=Path, metavar="FOLDER", help="write the model for other software, and compare "
           "on the sample, or on --task")
    option("--push-to-hub", metavar="OWNER/NAME", help="upload it, private unless --public")
    option("--as", dest="form", choices=FORMATS, default="sentence-transformers", help="the form of the two: "
           "bert for servers that know no ELECTRA, onnx for ONNX Runtime")
    option("--dtype", choices=DTYPES, default="float32", help="of the weights written")
    option("--vocabulary", type=Path, metavar="FILE", help="write only the words that the lines of FILE use; "
           "default: all")
    option("--public", action="store_true", help="let all see what is uploaded")
    option("--out", type=Path, metavar="PLACE", help="folder of the report, default: RUNS/report, or of the "
           "study; a .npy file for --encode")
    args = p.parse_args(argv)
    for one, other in (*combinations(("study", "advise", "probe", "report"), 2), ("data", "data_root")):
        p.one_of(args, one, other)
    if args.probe and (args.task or args.data or args.data_root or args.score_range):
        raise InputError("--probe reads the lines of a file, not a task: leave out --task and --data")
    if args.generator and not args.probe:
        raise InputError("--generator does nothing without --probe: leave it out")
    if args.out and not (args.report or args.study or args.encode):
        raise InputError("--out does nothing with a model: leave it out")
    if args.encode and not args.out:
        raise InputError("--encode: name the file to be written with --out, vectors.npy")
    if bool(args.nearest_lines) != bool(args.within):
        raise InputError("--neighbours and --in: give the query and the file")
    as_usual = args.form == "sentence-transformers" and args.dtype == "float32"
    if not ((as_usual and not args.vocabulary) or args.export or args.push_to_hub):
        what = "--as, --dtype and --vocabulary do nothing without --export or --push-to-hub"
        raise InputError(f"{what}: leave them out")
    if args.public and not args.push_to_hub:
        raise InputError("--public does nothing without --push-to-hub: leave it out")
    for option in ("save", "export", "push_to_hub"):
        if args.precision != "fp32" and getattr(args, option):
            what = f"--precision {args.precision} and --{option.replace('_', '-')}"
            raise InputError(f"{what}: what is written does not depend on it, leave it out")
    if args.text and not args.study:
        raise InputError("--text does nothing without --study: leave it out")
    if args.report:
        p.refuse(args, what, "--report")
    others = ("report", "study", "advise", "probe")
    if instead := next((f"--{name}" for name in others if getattr(args, name)), ""):
        p.refuse(args, how, instead)
        if args.split != "test":
            raise InputError(f"--split does nothing with {instead}: leave it out")
    if args.report and args.model:
        raise InputError(f"{args.model} and --report: score a model, or make a report")
    if not (args.report or args.model):
        raise InputError("no model: name a hub id or a folder, or use --report RUNS")
    return args
# fmt: on


if __name__ == "__main__":
    run_command(main)
