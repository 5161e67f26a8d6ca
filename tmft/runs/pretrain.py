"""A pre-training run from start to end: what it starts from, what it prints, the folder that it leaves."""

import json
import sys
from argparse import Namespace
from dataclasses import asdict, fields, replace
from pathlib import Path

import torch
from torch import nn

from tmft.checkpoint import parameter_counts, random_encoder, read_encoder
from tmft.device import Processes
from tmft.encoder import Encoder
from tmft.errors import InputError
from tmft.families.config import EncoderConfig
from tmft.files.tokenizer import Tokenizer, check_ids, load_tokenizer
from tmft.files.weights import TOKENIZER_FILES, find, one_line, read_json, write_file
from tmft.pretraining.corpus import tokenise, train_wordpiece
from tmft.pretraining.heads import MaskedLM, ReplacedTokenDetection, read_mlm_head
from tmft.pretraining.loop import PretrainingRecipe, Progress, fit
from tmft.pretraining.masking import Masking
from tmft.runs.folder import clock, environment, finished_run, open_run, past_runs, percent, write_result
from tmft.runs.plan import parse_seeds
from tmft.training import choose_precision

# The masks of each task, as shares of the masked tokens: BERT's; ELECTRA's, whose generator sees only [MASK].
PRETRAINING = {"mlm": {"random": 0.1, "same": 0.1}, "rtd": {"random": 0.0, "same": 0.0}}

# Continued pre-training: 8 batches of 32 sentences a step, as in the TMFT paper. From scratch: batch and rate
# of ELECTRA-small.
CONTINUED = {"accumulate": 8}
FROM_SCRATCH = {"batch_size": 128, "accumulate": 1, "lr": 5e-4}


def pretrain(args, processes: Processes) -> None:
    """`train.py --task mlm` or rtd, for every checkpoint and seed that was asked for."""
    for ckpt in args.ckpt or [None]:
        for seed in parse_seeds(args):
            run(Namespace(**vars(args) | {"ckpt": ckpt}), seed, processes)


def run(args, seed: int, processes: Processes) -> dict:
    """One run of `train.py --task mlm` or rtd -> its result, from result.json if it was finished before."""
    check_arguments(args)
    recipe = PretrainingRecipe(**recipe_arguments(args))
    source = args.from_scratch or args.ckpt
    name = args.name or f"{Path(source.partition('@')[0]).name.removesuffix('.json')}-{args.task}"
    folder = args.runs / f"{name}-seed{seed}"
    settings = {"task": args.task, "ckpt": args.ckpt, "from_scratch": args.from_scratch, "seed": seed}
    settings |= {"text": [[str(path), size(path)] for path in args.text], "vocab_size": args.vocab_size}
    settings |= {"generator_size": args.generator_size if args.task == "rtd" else None}
    settings |= {"half": args.half} | asdict(recipe)
    say = print if processes.rank == 0 else (lambda *_, **__: None)
    if finished := finished_run(folder, settings):
        say(f"{folder}: finished before, kept")
        return finished

    torch.manual_seed(seed)  # random weights
    begin = from_scratch if args.from_scratch else from_checkpoint
    model, tokenizer, report = begin(args, recipe)
    model = model.to(processes.device)
    bar = processes.rank == 0 and sys.stderr.isatty()
    sentences = tokenise(args.text, tokenizer, recipe.max_length, progress=bar)
    if processes.rank == 0:
        open_run(folder)
    precision = choose_precision(recipe.precision, processes.device)
    where = f"{precision} on {processes.device}" + f" x {processes.count}" * (processes.count > 1)
    say(f"\n{folder}: {len(sentences)} sentences, {len(sentences.tokens)} tokens, {where}")
    say(report)

    masking = Masking.of(tokenizer, **PRETRAINING[args.task])
    state = folder / "state.pt"
    curve = []
    for record in fit(model, sentences, masking, recipe, seed, processes, state, settings, bar):
        curve.append(record)
        say(line(record), flush=True)
    result = {
        "sweep": name,
        "data": args.task,
        "history": past_runs(args.ckpt) if args.ckpt else [],
        "settings": settings,
        "arguments": json.loads(json.dumps(vars(args), default=str)),
        "start": report,
        "sentences": len(sentences),
        "text_tokens": len(sentences.tokens),
        "curve": [asdict(record) for record in curve],
        "tokens_seen": curve[-1].tokens,
        "held_out": {"before": curve[0].held_out, "after": curve[-1].held_out},
        "parameters": parameter_counts(model.encoder.config),
        "precision": precision,
        "processes": processes.count,
        "seconds": curve[-1].seconds,
        "environment": environment(processes.device),
    }
    if processes.rank == 0:
        write_run(folder, model, tokenizer, result)
        state.unlink()
    processes.wait()
    say(f"{ending(curve)}; see {folder}")
    return result


def check_arguments(args) -> None:
    """Raises InputError for options that do not go together, before any work."""
    if args.text is None:
        raise InputError(f"--task {args.task}: name the text to train on with --text FILE...")
    if (args.ckpt is None) == (args.from_scratch is None):
        raise InputError(
            f"--task {args.task}: name either a checkpoint to continue from with --ckpt, or a shape to train "
            "with --from-scratch"
        )
    if args.task == "rtd" and args.ckpt is not None:
        raise InputError("--task rtd: replaced-token detection starts --from-scratch, not from --ckpt")
    for name in ("layer", "init_from", "pooling", "data", "score_range"):
        if (value := getattr(args, name)) is not None:
            raise InputError(
                f"--{name} {value}: this is for fine-tuning, leave it out with --task {args.task}"
            )
    if not 0 < args.generator_size <= 1:
        raise InputError(f"--generator-size {args.generator_size}: choose a share above 0, up to 1")


def recipe_arguments(args) -> dict:
    """The fields of PretrainingRecipe among the arguments; what is None there keeps its default."""
    given = {field.name: getattr(args, field.name) for field in fields(PretrainingRecipe)}
    return {name: value for name, value in given.items() if value is not None}


def size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError as error:
        raise InputError(f"{path} cannot be read ({one_line(error)}): check the name") from None


def from_checkpoint(args, recipe: PretrainingRecipe) -> tuple[MaskedLM, Tokenizer, str]:
    """The encoder, MLM head and tokenizer of a checkpoint; a new head where it has none."""
    folder = find(args.ckpt)
    encoder, report = read_encoder(folder)
    tokenizer = check_tokenizer(load_tokenizer(folder), encoder.config, recipe, args.ckpt)
    head, layout = read_mlm_head(folder, encoder.config) or (None, None)
    whose = "its own MLM head" if head else "no MLM head in it: a new one on its word embeddings"
    return MaskedLM(encoder, head, layout), tokenizer, f"{report}\n{whose}"


def from_scratch(args, recipe: PretrainingRecipe) -> tuple[nn.Module, Tokenizer, str]:
    """Random weights in the shape of a config.json; the tokenizer beside it, or one trained on the text.

    --vocab-size asks for the latter; without it a trained one has the vocab_size of the config.
    """
    path = Path(args.from_scratch)
    folder = path.parent if path.is_file() else find(args.from_scratch, weights=False)
    config = EncoderConfig.from_dict(read_json(path if path.is_file() else folder / "config.json"))
    if args.vocab_size is None and any((folder / name).is_file() for name in TOKENIZER_FILES[:3]):
        tokenizer = load_tokenizer(folder)
        vocabulary = f"the vocabulary in {folder}"
    else:
        tokenizer = train_wordpiece(args.text, args.vocab_size or config.vocab_size)
        config = replace(config, vocab_size=tokenizer.backend.get_vocab_size())
        vocabulary = "a WordPiece vocabulary from the text"
    check_tokenizer(tokenizer, config, recipe, args.from_scratch)
    if args.task == "rtd":
        model = ReplacedTokenDetection(config, args.generator_size)
        narrow = model.generator.encoder.config
        generator = f"; a generator {narrow.hidden_size} wide with {narrow.num_attention_heads} heads"
    else:
        model, generator = MaskedLM(random_encoder(config)), ""
    count = sum(weight.numel() for weight in model.parameters())
    shape = f"{config.num_hidden_layers} layers, {config.hidden_size} wide"
    return model, tokenizer, f"random weights: {shape}{generator}; {count:,} parameters in all; {vocabulary}"


def check_tokenizer(
    tokenizer: Tokenizer, config: EncoderConfig, recipe: PretrainingRecipe, source: str
) -> Tokenizer:
    """The tokenizer itself. Raises InputError if it, the config and --max-length do not fit together."""
    if "mask_token" not in tokenizer.special:
        raise InputError(f"the vocabulary has no [MASK] ({source}): it cannot be used for pre-training")
    check_ids(tokenizer, config.vocab_size, source)
    if recipe.max_length > config.max_position_embeddings:
        raise InputError(
            f"--max-length {recipe.max_length}: choose at most {config.max_position_embeddings}, "
            "the size of the position table"
        )
    return tokenizer


def line(record: Progress) -> str:
    """One line of the log: losses and accuracies since the last line, and on the held-out part."""
    parts = [f"step {record.step:{len(str(record.steps))}}/{record.steps}"]
    for name, means in (("train", record.train), ("held out", record.held_out)):
        if means is not None:
            parts.append(f"{name} mlm {means['mlm_loss']:.3f} {percent(means['mlm_accuracy'])} %")
            if "rtd_loss" in means:
                accuracy, baseline = percent(means["rtd_accuracy"]), percent(means["rtd_baseline"])
                parts[-1] += f", rtd {means['rtd_loss']:.3f} {accuracy} % (always original {baseline})"
    if record.step:
        left = record.seconds / record.step * (record.steps - record.step)
        parts.append(f"lr {record.lr:.1e} | {record.tokens_per_second:,.0f} tokens/s | {clock(left)} left")
    return " | ".join(parts)


def ending(curve: list[Progress]) -> str:
    before, after = curve[0].held_out, curve[-1].held_out
    return (
        f"held out: loss {before['mlm_loss']:.3f} -> {after['mlm_loss']:.3f}, "
        f"masked tokens right {percent(before['mlm_accuracy'])} -> {percent(after['mlm_accuracy'])} %"
    )


def write_run(folder: Path, model: nn.Module, tokenizer: Tokenizer, result: dict) -> None:
    """The checkpoint, or ELECTRA's two, each with tokenizer and model card; result.json last."""
    model.save(folder, torch.float16 if result["settings"]["half"] else torch.float32)
    checkpoints = {"": model.encoder}
    if isinstance(model, ReplacedTokenDetection):
        checkpoints = {"discriminator": model.encoder, "generator": model.generator.encoder}
    for name, encoder in checkpoints.items():
        positions = encoder.config.max_position_embeddings
        limit = min(positions, tokenizer.max_length or positions)
        for file, content in tokenizer.files(limit).items():
            write_file(folder / name / file, content)
        write_file(folder / name / "README.md", card(encoder, name, result))
    write_result(folder, result)


def card(encoder: Encoder, part: str, result: dict) -> str:
    """README.md of a pre-trained checkpoint."""
    settings, config = result["settings"], encoder.config
    before, after = result["held_out"]["before"], result["held_out"]["after"]
    source = settings["ckpt"] or f"random weights in the shape of {settings['from_scratch']}"
    goal = {"mlm": "masked language modelling", "rtd": "replaced-token detection"}[settings["task"]]
    names = {
        "mlm_loss": "loss of the masked tokens, nats",
        "mlm_accuracy": "masked tokens that are predicted right",
        "rtd_loss": "loss of replaced-token detection, nats",
        "rtd_accuracy": "tokens that are told right, original or replaced",
        "rtd_baseline": "the same, always saying original",
    }
    rows = [f"| {names[name]} | {before[name]:.4f} | {after[name]:.4f} |" for name in after]
    batch, steps = settings["batch_size"] * settings["accumulate"], result["curve"][-1]["steps"]
    text = ", ".join(Path(name).name for name, _ in settings["text"])
    return f"""---
tags: [fill-mask, tmft]
---

# {part.capitalize() or "Encoder"}: {config.model_type}, {config.num_hidden_layers} x {config.hidden_size}

Pre-trained by {goal} from {source}:
{result["tokens_seen"]:,} tokens seen in {steps} steps of {batch} sentences, learning rate {settings["lr"]:g},
seed {settings["seed"]}, {result["precision"]}, in {clock(result["seconds"])} hours.

Text ({result["sentences"]:,} sentences, {result["text_tokens"]:,} tokens): {text}.

| held-out sentences | before | after |
|---|---:|---:|
{chr(10).join(rows)}

All settings: result.json.
"""
