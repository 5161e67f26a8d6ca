"""The folder of a SentenceEncoder: read it, write it, upload it.

`SentenceEncoder.from_pretrained` and `save_pretrained` are the door to this file. The other files of this
package know one part of a folder each: st_folder.py the settings, load.py and save.py the encoder,
tokenizers.py the tokenizer, model_card.py the text of the card.
"""

import logging
import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import torch

from tmft.checkpoints.hub import silence_hub
from tmft.checkpoints.load import load_encoder_with_report, random_encoder_with_report
from tmft.checkpoints.model_card import sentence_model_card
from tmft.checkpoints.model_folder import MODEL_FILES, ModelFolder
from tmft.checkpoints.save import save_encoder
from tmft.checkpoints.st_folder import check_can_be_saved, read_settings, settings_to_files
from tmft.checkpoints.tokenizers import load_tokenizer, tokenizer_to_files
from tmft.checkpoints.weights import parse_dtype
from tmft.embedding.layer_mix import parse_layer_mix
from tmft.embedding.modules import Dense
from tmft.embedding.token_weights import TokenWeights
from tmft.errors import InputError, check_choice, check_not_blank, describe_error
from tmft.io.arguments import check_arguments
from tmft.io.atomic import replacing_files, write_file
from tmft.models.families import FAMILIES
from tmft.pooling import required_components

if TYPE_CHECKING:
    from tmft.sentence_encoder import SentenceEncoder

log: logging.Logger = logging.getLogger("tmft")


def load_sentence_encoder(
    model_class: type["SentenceEncoder"],
    checkpoint: str | os.PathLike[str] | ModelFolder,
    layer: int | str | None,
    pooling: str | None,
    max_length: int | None,
    init: str,
    dtype: str | torch.dtype,
) -> "SentenceEncoder":
    """Return the model in a folder or hub id. `SentenceEncoder.from_pretrained` explains the parameters."""
    given = {"pooling": pooling, "max_length": max_length}
    check_arguments(given, {"pooling": str | None, "max_length": int | None})
    check_choice("init", init, ["pretrained", "random"])
    folder = ModelFolder.open(checkpoint, weights=init == "pretrained")
    saved = read_settings(folder, pooling)
    pooling = saved.pooling or "mean"
    tokenizer = load_tokenizer(folder, saved.lower_case, saved.max_length)
    components = required_components(pooling)
    layers = parse_layer_mix(saved.layer_mix if layer is None else layer)
    highest = None if layer is None or layers is None else max(0, *layers)
    load = random_encoder_with_report if init == "random" else load_encoder_with_report
    encoder, report = load(folder, highest, components, dtype)
    num_layers, full_depth = len(encoder.layers), encoder.config.num_hidden_layers
    if layers == (num_layers,):
        layers = None  # the last hidden state
    if num_layers < full_depth and any(isinstance(module, Dense) for module in saved.modules):
        log.warning(
            "the Dense after the pooling was trained on layer %d and now gets layer %d: fine-tune the "
            "model, or name a pooling to drop the Dense",
            full_depth,
            num_layers,
        )
    model = model_class(
        encoder,
        tokenizer,
        pooling,
        max_length,
        saved.modules,
        source=folder.name,
        load_report=str(report),
        layers=layers,
    )
    model.prompts, model.default_prompt_name = dict(saved.prompts), saved.default_prompt_name
    model.similarity_fn_name = saved.similarity_fn_name
    model.include_prompt, model.truncate_dim = saved.include_prompt, saved.truncate_dim
    if model.truncate_dim is not None:
        model.warn_about_lengths()
    if saved.token_weights:
        model.set_token_weights(saved.token_weights)
    elif saved.word_weights is not None:
        table = torch.ones(encoder.config.vocab_size)
        table[: len(saved.word_weights)] = saved.word_weights[: len(table)]
        model.token_weights = TokenWeights(table)
    if not folder.is_unchanged():
        raise InputError(f"{folder.name} was changed while it was read: try again when it is complete")
    return model.eval()


def save_sentence_encoder(
    model: "SentenceEncoder", folder: str | os.PathLike[str], dtype: str | torch.dtype | None = None
) -> None:
    """Write the folder of a model. `SentenceEncoder.save_pretrained` explains the parameters."""
    check_not_blank("folder", folder)
    folder, dtype = Path(folder), parse_dtype(dtype or "auto") or model.dtype
    check_can_be_saved(model)
    padding_side = FAMILIES[model.encoder.config.model_type].padding_side
    tokenizer_files = tokenizer_to_files(model.tokenizer, model.max_length, padding_side)
    settings_files = settings_to_files(model, dtype)
    with replacing_files(folder, stale=MODEL_FILES) as new:
        save_encoder(model.encoder, new, dtype=dtype)
        for name, content in (tokenizer_files | settings_files).items():
            write_file(new / name, content)
        write_file(new / "README.md", sentence_model_card(model))


def push_sentence_encoder(model: "SentenceEncoder", repo_id: str, private: bool) -> str:
    """Upload a model to a new repository. `SentenceEncoder.push_to_hub` explains the parameters."""
    from huggingface_hub import HfApi  # imported here: it takes 0.1 s, and local folders do not need it

    api, problem = HfApi(), f"{repo_id} cannot be created on the hub"
    with TemporaryDirectory() as scratch:
        folder = Path(scratch) / "model"
        save_sentence_encoder(model, folder)
        try:
            with silence_hub():
                repo_id = api.create_repo(repo_id, private=private).repo_id
                problem = f"the repository {repo_id} was created on the hub, but the upload failed"
                write_file(folder / "README.md", sentence_model_card(model, name=repo_id))
                api.upload_folder(repo_id=repo_id, folder_path=folder, commit_message="Upload with tmft")
        except Exception as error:  # its type depends on the HTTP library that huggingface-hub uses
            remedy = "check the name, the network and the token (HF_TOKEN, or hf auth login)"
            raise InputError(f"{problem} ({describe_error(error)}): {remedy}", "repo_id") from None
    return f"{api.endpoint}/{repo_id}"
