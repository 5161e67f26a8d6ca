"""A pre-training run from start to end: make the model, train it, print the progress, write the folder."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from tmft.checkpoints.load import load_encoder_with_report
from tmft.checkpoints.model_card import format_model_card
from tmft.checkpoints.model_folder import ModelFolder
from tmft.checkpoints.tokenizers import Tokenizer, load_tokenizer, tokenizer_to_files
from tmft.device import choose_precision
from tmft.encoder import BaseEncoder, EncoderConfig
from tmft.errors import InputError
from tmft.io.atomic import write_file
from tmft.io.distributed import Processes
from tmft.io.files import file_digest, is_file
from tmft.io.formatting import escape_markdown, format_duration, percent
from tmft.models.families import FAMILIES, convert_to_bert, empty_encoder, parameter_counts, random_encoder
from tmft.pretraining.corpus import tokenize_files, train_wordpiece
from tmft.pretraining.masking import Masking
from tmft.pretraining.pretraining_loop import PretrainingLog, PretrainingObjective, pretrain
from tmft.pretraining.token_heads import MaskedLM, ReplacedTokenDetection, read_mlm_head, read_rtd_head
from tmft.runs.result_json import read_provenance, to_json_types
from tmft.runs.run_config import GENERATOR_SIZE, PretrainingConfig
from tmft.runs.run_folder import check_run_name, open_run_folder, reserve_folder
from tmft.runs.run_result import describe_environment, write_result
from tmft.tokenizer import check_vocab_size

PRETRAINING_TASKS = {"mlm": "masked language modeling", "rtd": "replaced token detection"}
MAX_TEXT_LENGTH = 10_000  # characters of the names of the text files in a card


def do_pretraining_runs(
    configs: list[PretrainingConfig],
    run_name: str | None,
    output_dir: Path,
    processes: Processes,
    arguments: dict[str, Any],
) -> None:
    """Do several pre-training runs, on each of which all processes work together; check all of them first."""
    check_run_name(run_name)
    folders = [output_dir / f"{run_name or config.name}-seed{config.seed}" for config in configs]
    reserved: dict[Path, str | None] = {}
    for config, folder in zip(configs, folders, strict=True):
        reserve_folder(folder, config.ckpt, config.to_flat_dict(), reserved)
    for config, folder in zip(configs, folders, strict=True):
        do_pretraining_run(config, run_name or config.name, folder, processes, arguments)


def do_pretraining_run(
    config: PretrainingConfig, sweep: str, folder: Path, processes: Processes, arguments: dict[str, Any]
) -> None:
    """Do one pre-training run and write its folder, unless it is finished already."""
    recipe, settings, device = config.recipe, config.to_flat_dict(), processes.device
    print_main = print if processes.rank == 0 else (lambda *_, **__: None)
    needs_weights = config.ckpt is not None
    with processes.main_process_first():  # the first process downloads what is absent
        source = ModelFolder.open(config.source, weights=needs_weights)
    digests = {
        "text": {str(path): file_digest(path) for path in config.text if is_file(path)},  # not of a pipe
        "checkpoint": source.digests(weights=needs_weights),
    }
    with open_run_folder(folder, settings, digests, processes) as checkpoint:
        if checkpoint is None:
            return
        torch.manual_seed(config.seed)  # for random weights
        make_model = from_checkpoint if needs_weights else from_scratch
        model, tokenizer, start = make_model(config, source)
        if isinstance(model, ReplacedTokenDetection):
            width = model.generator.encoder.config.hidden_size
            start += f"; a generator with random weights of hidden size {width}"
        model = model.to(device)
        corpus = tokenize_files(config.text, tokenizer, recipe.length_for(model))
        masking = Masking.from_tokenizer(tokenizer)
        if config.task == "rtd":  # as in ELECTRA, where every masked token becomes [MASK]
            masking = replace(masking, random_prob=0.0, keep_prob=0.0)
        precision = choose_precision(recipe.precision, device)
        num_processes = f" x {processes.world_size}" * (processes.world_size > 1)
        text_size = f"{len(corpus)} sentences, {len(corpus.tokens)} tokens"
        print_main(f"\n{folder}: {text_size}, {precision} on {device}{num_processes}\n{start}")
        log = []
        for entry in pretrain(model, corpus, masking, recipe, config.seed, processes, checkpoint):
            log.append(entry)
            print_main(progress_line(entry), flush=True)
        before, after = log[0].held_out, log[-1].held_out
        result = {  # docs/commands.md has its keys
            "sweep": sweep,
            "data": config.task,
            "provenance": read_provenance(config.ckpt) if config.ckpt else [],
            "settings": settings,
            "digests": digests,
            "arguments": to_json_types(arguments),
            "start": start,
            "sentences": len(corpus),
            "text_tokens": len(corpus.tokens),
            "curve": [asdict(entry) for entry in log],
            "tokens_seen": log[-1].tokens,
            "held_out": {"before": before, "after": after},
            "parameters": parameter_counts(model.encoder.config),
            "precision": precision,
            "processes": processes.world_size,
            "seconds": log[-1].seconds,
            "environment": describe_environment(device),
        }
        if processes.rank == 0:
            write_run(folder, model, tokenizer, result)
    processes.barrier()
    print_main(
        f"held out: loss {before['mlm_loss']:.3f} -> {after['mlm_loss']:.3f}, masked tokens right "
        f"{percent(before['mlm_accuracy'])} -> {percent(after['mlm_accuracy'])} %; see {folder}"
    )


def from_checkpoint(
    config: PretrainingConfig, folder: ModelFolder
) -> tuple[PretrainingObjective, Tokenizer, str]:
    """Return the objective with the weights of a checkpoint, the tokenizer, and a description of the weights.

    A head that the checkpoint lacks gets random weights; the generator of task rtd is always new.
    """
    encoder, report = load_encoder_with_report(folder)
    tokenizer = load_tokenizer(folder)
    check_fits(config, tokenizer, encoder.config)
    model: PretrainingObjective
    if config.task == "rtd":
        head = read_rtd_head(folder, encoder.config)
        encoder, size = to_electra(encoder), config.generator_size or GENERATOR_SIZE
        model, is_new = ReplacedTokenDetection(encoder.config, size, encoder, head), head is None
    else:
        head_and_layout = read_mlm_head(folder, encoder.config)
        model, is_new = MaskedLM(encoder, *(head_and_layout or ())), head_and_layout is None
    head_source = "new, as the checkpoint has none for this task" if is_new else "that of the checkpoint"
    return model, tokenizer, f"{report}\nthe head is {head_source}"


def from_scratch(
    config: PretrainingConfig, folder: ModelFolder
) -> tuple[PretrainingObjective, Tokenizer, str]:
    """Return an objective with random weights, its tokenizer, and a description of both.

    folder: the one of the architecture. Without a tokenizer in it, or with a vocab_size, a new one is trained
    on the text.
    """
    encoder_config = folder.config()
    if config.vocab_size is None and folder.tokenizer_files():
        tokenizer = load_tokenizer(folder)
        vocabulary = f"the vocabulary in {folder.name}"
    else:
        tokenizer = train_wordpiece(config.text, config.vocab_size or encoder_config.vocab_size)
        vocab_size, pad_id = tokenizer.backend.get_vocab_size(), tokenizer.pad_id
        encoder_config = replace(encoder_config, vocab_size=vocab_size, pad_token_id=pad_id)
        if encoder_config.position_offset not in (0, pad_id + 1):
            raise InputError(
                f"{config.from_scratch}: positions of this family start after a padding token of id "
                f"{encoder_config.position_offset - 1}, which a new vocabulary has not: put the files of its "
                "tokenizer next to config.json"
            )
        vocabulary = "a WordPiece vocabulary from the text"
    check_fits(config, tokenizer, encoder_config)
    model: PretrainingObjective
    if config.task == "rtd":
        model = ReplacedTokenDetection(encoder_config, config.generator_size or GENERATOR_SIZE)
    else:
        model = MaskedLM(random_encoder(encoder_config))
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    size = f"{encoder_config.num_hidden_layers} layers, hidden size {encoder_config.hidden_size}"
    return model, tokenizer, f"random weights: {size}; {num_parameters:,} parameters in all; {vocabulary}"


def to_electra(encoder: BaseEncoder) -> BaseEncoder:
    """Return an ELECTRA with the weights and outputs of a BERT, or of an encoder that can be stored as BERT.

    Other encoders are returned unchanged.
    """
    if FAMILIES[encoder.config.model_type].bert_incompatible:
        return encoder
    config, weights = convert_to_bert(encoder)
    electra = empty_encoder(replace(config, model_type="electra"), len(encoder.layers))
    electra.load_state_dict(weights, assign=True)
    return electra


def check_fits(run: PretrainingConfig, tokenizer: Tokenizer, config: EncoderConfig) -> None:
    """Raise InputError if a tokenizer or an encoder cannot be pre-trained, or not with the other."""
    max_length, source = run.recipe.max_length, run.source
    for name in ("mask", "cls", "sep"):
        if f"{name}_token" not in tokenizer.special_tokens:
            problem = f"the vocabulary has no [{name.upper()}] ({source})"
            raise InputError(f"{problem}: it cannot be used for pre-training")
    check_vocab_size(tokenizer, config.vocab_size, source)
    if max_length is not None and max_length > config.max_tokens:
        raise InputError(
            f"max_length {max_length}: choose at most {config.max_tokens}, the number of position embeddings",
            "max_length",
        )
    if config.predicts_next_token:
        raise InputError(
            f"task {run.task}: tokens attend only to those before them ({source}): for attention to both "
            'sides put "is_decoder": false into its config.json',
            "task",
        )


def progress_line(entry: PretrainingLog) -> str:
    """Return the line that is printed for a log entry: losses and accuracies, speed and time left."""
    parts = [f"step {entry.step:{len(str(entry.steps))}}/{entry.steps}"]
    for split, means in (("train", entry.train), ("held out", entry.held_out)):
        if means is not None:
            parts.append(f"{split} mlm {means['mlm_loss']:.3f} {percent(means['mlm_accuracy'])} %")
            if "rtd_loss" in means:
                accuracy, baseline = percent(means["rtd_accuracy"]), percent(means["rtd_baseline"])
                parts[-1] += f", rtd {means['rtd_loss']:.3f} {accuracy} % (always original {baseline})"
    if entry.step:
        seconds_left = entry.seconds / entry.step * (entry.steps - entry.step)
        speed = f"{entry.tokens_per_second:,.0f} tokens/s"
        parts.append(f"lr {entry.lr:.1e} | {speed} | {format_duration(seconds_left)} left")
    return " | ".join(parts)


def write_run(
    folder: Path, model: PretrainingObjective, tokenizer: Tokenizer, result: dict[str, Any]
) -> None:
    """Write the checkpoint with its tokenizer and model card, and at the end result.json.

    ReplacedTokenDetection writes two checkpoints, in the subfolders discriminator and generator.
    """
    model.save(folder, torch.float16 if result["settings"]["save_fp16"] else torch.float32)
    checkpoints = {"": model.encoder}
    if isinstance(model, ReplacedTokenDetection):
        checkpoints = {"discriminator": model.encoder, "generator": model.generator.encoder}
    for name, encoder in checkpoints.items():
        config = encoder.config
        positions = config.default_max_length or config.max_tokens
        max_length = min(positions, tokenizer.max_length or positions)
        padding_side = FAMILIES[config.model_type].padding_side
        for file, content in tokenizer_to_files(tokenizer, max_length, padding_side).items():
            write_file(folder / name / file, content)
        write_file(folder / name / "README.md", pretraining_card(config, name, result))
    write_result(folder, result)


def pretraining_card(config: EncoderConfig, component: str, result: dict[str, Any]) -> str:
    """Return the model card of a pre-trained checkpoint, or of its component discriminator or generator."""
    settings = result["settings"]
    before, after = result["held_out"]["before"], result["held_out"]["after"]
    initial_weights = (
        settings["ckpt"] or f"random weights with the architecture of {settings['from_scratch']}"
    )
    rows = [f"| {name.replace('_', ' ')} | {before[name]:.4f} | {after[name]:.4f} |" for name in after]
    batch_size = settings["batch_size"] * settings["gradient_accumulation_steps"]
    text = escape_markdown(", ".join(Path(name).name for name, _ in settings["text"]), MAX_TEXT_LENGTH)
    num_steps, duration = result["curve"][-1]["steps"], format_duration(result["seconds"])
    title = component.capitalize() or "Encoder"
    return format_model_card(
        f"{title}: {config.model_type}, {config.num_hidden_layers} layers, hidden size {config.hidden_size}",
        f"""
Pre-trained by {PRETRAINING_TASKS[settings["task"]]} from {escape_markdown(initial_weights)}:
{result["tokens_seen"]:,} tokens seen in {num_steps} steps of {batch_size} sentences, learning rate
{settings["lr"]:g}, seed {settings["seed"]}, {result["precision"]}, in {duration} hours.

Text ({result["sentences"]:,} sentences, {result["text_tokens"]:,} tokens): {text}.

| held-out sentences | before | after |
|---|---:|---:|
{chr(10).join(rows)}

All settings: result.json.
""",
        tags=["fill-mask", "tmft"],
    )
