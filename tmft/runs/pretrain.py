"""A pre-training run from start to end: what it starts from, what it prints, the folder that it leaves."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from tmft.checkpoints.hub import find
from tmft.checkpoints.load import load_encoder_with_report, read_config
from tmft.checkpoints.tokenizers import TOKENIZER_FILES, Tokenizer, check_ids, load_tokenizer
from tmft.device import choose_precision
from tmft.distributed import Processes
from tmft.errors import InputError
from tmft.formatting import clock, percent
from tmft.io.atomic import read_json, write_file
from tmft.models import config_from_dict
from tmft.models.bert import BaseEncoder, EncoderConfig
from tmft.models.registry import FAMILIES, check_fits, empty_encoder, random_encoder
from tmft.pretraining.corpus import tokenise
from tmft.pretraining.heads import MaskedLM, ReplacedTokenDetection, guessed, read_mlm_head, read_rtd_head
from tmft.pretraining.loop import PretrainingRecipe, Progress, fit
from tmft.pretraining.masking import Masking
from tmft.pretraining.span_corruption import SpanCorruption, SpanMasking
from tmft.pretraining.wordpiece import train_wordpiece
from tmft.runs.run_cards import pretraining_card
from tmft.runs.run_config import GENERATOR_SIZE, PretrainingConfig
from tmft.runs.run_folder import (
    check_name,
    claim,
    finished_run,
    lock_run_folder,
    pretraining_result,
    write_result,
)

# What each task hides: BERT's masks, as shares of the masked tokens; ELECTRA's, whose generator sees only
# [MASK]; T5's spans.
PRETRAINING: dict[str, Callable[[Tokenizer], Masking | SpanMasking]] = {
    "mlm": partial(Masking.of, random=0.1, same=0.1),
    "rtd": partial(Masking.of, random=0.0, same=0.0),
    "span": SpanMasking.of,
}
Model = MaskedLM | ReplacedTokenDetection | SpanCorruption


def pretrain(
    planned: list[PretrainingConfig], name: str | None, runs: Path, processes: Processes, arguments: dict
) -> None:
    """Do the runs one after the other, each shared by all processes.

    name: of the run folders, None: checkpoint and task; runs: the folder they are in. Raises InputError,
    before any work, if one cannot be done.
    """
    check_name(name)
    folders, claimed = [runs / f"{name or what.name}-seed{what.seed}" for what in planned], {}
    for what, folder in zip(planned, folders, strict=True):
        claim(folder, what.ckpt, what.settings, claimed)
    for what, folder in zip(planned, folders, strict=True):
        pretrain_once(what, name or what.name, folder, processes, arguments)


def pretrain_once(
    what: PretrainingConfig, name: str, folder: Path, processes: Processes, arguments: dict
) -> dict:
    """Do one run -> its result, from result.json if it was finished before."""
    recipe, settings = what.recipe, what.settings
    say = print if processes.rank == 0 else (lambda *_, **__: None)
    if finished := finished_run(folder, settings):
        say(f"{folder}: finished before, kept")
        return finished

    torch.manual_seed(what.seed)  # random weights
    model, tokenizer, start = (from_scratch if what.from_scratch else from_checkpoint)(what)
    model = model.to(processes.device)
    sentences = tokenise(what.text, tokenizer, recipe.max_length)
    shared = f" x {processes.world_size}" * (processes.world_size > 1)
    where = f"{choose_precision(recipe.precision, processes.device)} on {processes.device}{shared}"
    masking = PRETRAINING[what.task](tokenizer)
    with lock_run_folder(folder, settings, processes) as state:
        say(f"\n{folder}: {len(sentences)} sentences, {len(sentences.tokens)} tokens, {where}")
        say(start)
        curve = []
        for record in fit(model, sentences, masking, recipe, what.seed, processes, state):
            curve.append(record)
            say(line(record), flush=True)
        result = pretraining_result(what, name, model.encoder, start, sentences, curve, processes, arguments)
        if processes.rank == 0:
            write_run(folder, model, tokenizer, result)
    processes.barrier()
    say(f"{ending(curve)}; see {folder}")
    return result


def from_checkpoint(what: PretrainingConfig) -> tuple[Model, Tokenizer, str]:
    """The encoder, head and tokenizer of a checkpoint; a new head where it has none, and a new generator."""
    folder = find(what.ckpt)
    encoder, report = load_encoder_with_report(folder)
    tokenizer = load_tokenizer(folder)
    check_tokenizer(tokenizer, encoder.config, what.recipe, what.ckpt)
    if what.task == "rtd":
        head = read_rtd_head(folder, encoder.config)
        whose = "its own head" if head else "no discriminator's head in it: a new one"
        encoder = as_electra(encoder)
        size = what.generator_size or GENERATOR_SIZE
        model = ReplacedTokenDetection(encoder.config, size, encoder, head)
        return model, tokenizer, f"{report}\n{whose}, {of_generator(model)}, random weights"
    head, layout = read_mlm_head(folder, encoder.config) or (None, 0)
    whose = "its own MLM head" if head else "no MLM head in it: a new one on its word embeddings"
    return MaskedLM(encoder, head, layout), tokenizer, f"{report}\n{whose}"


def from_scratch(what: PretrainingConfig) -> tuple[Model, Tokenizer, str]:
    """Random weights in the shape of a config.json; the tokenizer beside it, or one trained on the text.

    vocab_size asks for the latter; without it a trained one has the vocab_size of the config.
    """
    path = Path(what.from_scratch)
    if path.is_file():
        folder, config = path.parent, config_from_dict(read_json(path))
    else:
        folder = find(what.from_scratch, weights=False)
        config = read_config(folder)
    if what.vocab_size is None and any((folder / name).is_file() for name in TOKENIZER_FILES[:-1]):
        tokenizer = load_tokenizer(folder)
        vocabulary = f"the vocabulary in {folder}"
    else:
        tokenizer = train_wordpiece(what.text, what.vocab_size or config.vocab_size)
        config = replace(config, vocab_size=tokenizer.backend.get_vocab_size())
        vocabulary = "a WordPiece vocabulary from the text"
    check_tokenizer(tokenizer, config, what.recipe, what.from_scratch)
    check_fits(config)
    if what.task == "rtd":
        model = ReplacedTokenDetection(config, what.generator_size or GENERATOR_SIZE)
        generator = f"; {of_generator(model)}"
    elif what.task == "span":
        model, generator = SpanCorruption(config), f"; a decoder of {config.num_decoder_layers} layers"
    else:
        model, generator = MaskedLM(random_encoder(config)), ""
    count = sum(weight.numel() for weight in model.parameters())
    shape = f"{config.num_hidden_layers} layers, {config.hidden_size} wide"
    return model, tokenizer, f"random weights: {shape}{generator}; {count:,} parameters in all; {vocabulary}"


def as_electra(encoder: BaseEncoder) -> BaseEncoder:
    """A BERT under the name of ELECTRA, whose layers are the same; what is neither of them as it is."""
    if FAMILIES[encoder.config.model_type].bert_incompatible:
        return encoder
    made = empty_encoder(replace(encoder.config, model_type="electra"), len(encoder.layers))
    made.load_state_dict(encoder.state_dict(), assign=True)
    return made


def of_generator(model: ReplacedTokenDetection) -> str:
    narrow = model.generator.encoder.config
    return f"a generator {narrow.hidden_size} wide with {narrow.num_attention_heads} heads"


def check_tokenizer(
    tokenizer: Tokenizer, config: EncoderConfig, recipe: PretrainingRecipe, source: str
) -> None:
    """Raises InputError if tokenizer, config and max_length do not fit together."""
    if "mask_token" not in tokenizer.special:
        raise InputError(f"the vocabulary has no [MASK] ({source}): it cannot be used for pre-training")
    check_ids(tokenizer, config.vocab_size, source)
    if recipe.max_length > config.max_position_embeddings:
        raise InputError(
            f"max_length {recipe.max_length}: choose at most {config.max_position_embeddings}, "
            "the size of the position table",
            "max_length",
        )


def line(record: Progress) -> str:
    """One line of the log: losses and accuracies since the last line, and on the held-out part."""
    parts = [f"step {record.step:{len(str(record.steps))}}/{record.steps}"]
    for name, means in (("train", record.train), ("held out", record.held_out)):
        if means is not None:
            what = guessed(means)
            parts.append(f"{name} {what} {means[f'{what}_loss']:.3f} {percent(means[f'{what}_accuracy'])} %")
            if "rtd_loss" in means:
                accuracy, baseline = percent(means["rtd_accuracy"]), percent(means["rtd_baseline"])
                parts[-1] += f", rtd {means['rtd_loss']:.3f} {accuracy} % (always original {baseline})"
    if record.step:
        left = record.seconds / record.step * (record.steps - record.step)
        parts.append(f"lr {record.lr:.1e} | {record.tokens_per_second:,.0f} tokens/s | {clock(left)} left")
    return " | ".join(parts)


def ending(curve: list[Progress]) -> str:
    before, after = curve[0].held_out, curve[-1].held_out
    loss, right = (f"{guessed(after)}_{figure}" for figure in ("loss", "accuracy"))
    return (
        f"held out: loss {before[loss]:.3f} -> {after[loss]:.3f}, "
        f"masked tokens right {percent(before[right])} -> {percent(after[right])} %"
    )


def write_run(folder: Path, model: Model, tokenizer: Tokenizer, result: dict) -> None:
    """The checkpoint, or ELECTRA's two, each with tokenizer and model card; result.json last."""
    model.save(folder, torch.float16 if result["settings"]["half"] else torch.float32)
    checkpoints = {"": model.encoder}
    if isinstance(model, ReplacedTokenDetection):
        checkpoints = {"discriminator": model.encoder, "generator": model.generator.encoder}
    for name, encoder in checkpoints.items():
        config = encoder.config
        positions = config.default_max_length or config.max_position_embeddings
        limit = min(positions, tokenizer.max_length or positions)
        for file, content in tokenizer.files(limit).items():
            write_file(folder / name / file, content)
        card = pretraining_card(config.model_type, config.num_hidden_layers, config.hidden_size, name, result)
        write_file(folder / name / "README.md", card)
    write_result(folder, result)
