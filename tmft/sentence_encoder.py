"""SentenceEncoder: a truncated encoder with its tokenizer and pooling. Sentences in, one embedding each out.

In reading order: from_pretrained, tokenize, forward, encode, save_pretrained.
Letters in this file: S sentences of a batch, N sentences in total, B rows, T tokens in a row, D dimensions
of an embedding, l the number of kept layers.
"""

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tmft.checkpoints.hub import resolve_checkpoint
from tmft.checkpoints.load import load_encoder_with_report, random_encoder_with_report
from tmft.checkpoints.model_card import PLACEHOLDER_PATH, ModelCardData, UsageInfo, sentence_card
from tmft.checkpoints.save import compatibility_note, has_pooler, save_encoder, transformers_class
from tmft.checkpoints.st_folder import (
    SentenceTransformersConfig,
    check_static_config,
    read_st_folder,
    write_st_folder,
)
from tmft.checkpoints.tokenizers import Tokenizer, check_vocab_size, load_tokenizer, resolve_max_length
from tmft.device import progress_bar
from tmft.embedding.layer_mix import (
    check_layer_mix,
    format_layer_mix,
    layer_mix_width,
    mean_hidden_state,
    parse_layer_mix,
)
from tmft.embedding.modules import Dense, Normalize, load_modules, to_saved_modules
from tmft.embedding.prompts import Prompt
from tmft.embedding.token_weights import TokenWeights, check_token_weights, make_token_weights
from tmft.errors import InputError
from tmft.io.atomic import write_file
from tmft.models.base import BaseEncoder
from tmft.packing import PACKED_LENGTH, PackedBatch, pack
from tmft.pooling import parse_pooling, pooling_functions, required_components
from tmft.speed.length_buckets import length_bucketed_batches
from tmft.speed.prepacked_weights import fast_encoding

log = logging.getLogger("tmft")  # prints one plain line on stderr, unless the calling program configures it


class SentenceEncoder(nn.Module):
    """Maps sentences to embeddings: the pooled hidden state l of an encoder with l layers.

    encoder: a BERT, ELECTRA, DeBERTa, T5 or static model of tmft/models. tokenizer: of the same checkpoint.
    pooling: a name in POOLINGS, or several as in max+mean, whose vectors are concatenated.
    max_length: longer sentences are truncated to this number of tokens, special ones included; None: the
    tokenizer's limit.
    modules: applied to the pooled embedding, in this order, such as Dense or Normalize.
    prompt: a prefix of every sentence, or a template in which [X] stands for the sentence.
    source: the checkpoint it was made from. load_report: which of its tensors were loaded.
    layers: hidden states to average, WORD_EMBEDDINGS among them; None: the last one.

    The attribute token_weights has the weights of tokens in the mean, or None if all are equal; it is set by
    set_token_weights. Raises InputError if the encoder lacks a layer or the pooling, or if the tokenizer does
    not fit.
    """

    def __init__(
        self,
        encoder: BaseEncoder,
        tokenizer: Tokenizer,
        pooling: str = "mean",
        max_length: int | None = None,
        modules: Sequence[nn.Module] = (),
        prompt: str = "",
        source: str = "",
        load_report: str = "",
        layers: tuple[int, ...] | None = None,
    ):
        super().__init__()
        pooling_functions(pooling, encoder)  # raises InputError if there is no such pooling
        check_layer_mix(layers, encoder)
        check_vocab_size(tokenizer, encoder.config.vocab_size, source)
        num_positions = encoder.config.max_position_embeddings
        default_max_length = encoder.config.default_max_length or num_positions
        self.encoder, self.tokenizer = encoder, tokenizer
        self.max_length = resolve_max_length(tokenizer, max_length, num_positions, default_max_length)
        self.prompt, self.layers, self.pooling = prompt, layers, pooling
        self.token_weights: TokenWeights | None = None
        self.head_modules = nn.Sequential(*modules)
        self.source, self.load_report = source, load_report

    # ---------------------------------------------------------------------------------------- from_pretrained

    @classmethod
    def from_pretrained(
        cls,
        checkpoint: str | os.PathLike,
        layer: int | str | None = None,
        pooling: str | None = None,
        max_length: int | None = None,
        init: str = "pretrained",
    ) -> "SentenceEncoder":
        """Load the first `layer` layers of a checkpoint, in float32, on the CPU, in evaluation mode.

        checkpoint: a hub id with optional @revision, or a folder.
        layer: None keeps all layers. A mix such as 1+12 or word+12 averages hidden states, see
        embedding/layer_mix.py.
        pooling: the name of a pooling. None uses the pooling, the token weights and the modules that were
        saved in the folder, or mean pooling if nothing was saved; naming a pooling ignores all of these.
        max_length: in tokens; None uses the saved limit, or the tokenizer's.
        init: "pretrained", or "random" for an encoder of the same shape with random weights, drawn from
        torch's global generator; no weights are read then.
        Raises InputError if the checkpoint is damaged or cannot be run.
        """
        layers = parse_layer_mix(layer)
        folder = resolve_checkpoint(checkpoint, weights=init == "pretrained")
        saved = read_st_folder(folder, modules=pooling is None)
        pooling = pooling or saved.pooling or "mean"

        load = random_encoder_with_report if init == "random" else load_encoder_with_report
        encoder, report = load(folder, layers and max(0, *layers), required_components(pooling))
        tokenizer = load_tokenizer(folder, saved.lower_case, saved.max_length)
        modules = load_modules(saved.modules)
        model = cls(
            encoder, tokenizer, pooling, max_length, modules, saved.prompt, str(checkpoint), str(report)
        )

        num_layers, full_depth = len(encoder.layers), encoder.config.num_hidden_layers
        if num_layers < full_depth and any(isinstance(module, Dense) for module in modules):
            log.warning(
                "the Dense after the pooling was trained on layer %d and now gets layer %d: fine-tune the "
                "model, or name a pooling to drop the Dense",
                full_depth,
                num_layers,
            )
        if layers is None:
            layers = parse_layer_mix(saved.layer_mix)
        elif layers == (num_layers,):
            layers = None  # the last hidden state
        check_layer_mix(layers, encoder)
        model.layers = layers
        if saved.token_weights:
            model.set_token_weights(saved.token_weights)
        elif saved.word_weights is not None:
            table = torch.ones(encoder.config.vocab_size)
            table[: len(saved.word_weights)] = saved.word_weights[: len(table)]
            model.token_weights = TokenWeights(table)
        return model.eval()

    @property
    def device(self) -> torch.device:
        return self.encoder.embeddings.word.weight.device

    @property
    def dimensions(self) -> int:
        """D, the number of dimensions of an embedding."""
        for module in reversed(self.head_modules):
            if hasattr(module, "out_features"):
                return module.out_features
        num_vectors = sum(pooling.num_vectors for pooling in parse_pooling(self.pooling))
        return num_vectors * layer_mix_width(self.layers, self.encoder.config)

    # ----------------------------------------------------------------------------------------------- tokenize

    def tokenize(self, sentences: Sequence[str], prompt: str | None = None) -> list[list[int]]:
        """Tokenize sentences: the token ids of each, special ones included, at most max_length.

        prompt: used instead of the model's own; '' is none. Logs one line if sentences were truncated.
        """
        if prompt is None:
            prompt = self.prompt
        elif prompt != self.prompt and self.token_weights is not None and self.token_weights.is_positional:
            raise InputError(
                "prompt: the token weights of this model exclude the tokens of its own prompt: "
                "set model.prompt, then call model.set_token_weights",
                "prompt",
            )
        apply_prompt = Prompt(prompt, self.tokenizer)
        token_ids, num_truncated = apply_prompt(check_sentences(sentences), self.max_length)
        if num_truncated:
            counts = (num_truncated, len(token_ids), self.max_length)
            log.warning("%d of %d sentences are longer than %d tokens and were truncated", *counts)
        return token_ids

    # ------------------------------------------------------------------------------------------------ forward

    def forward(self, batch: PackedBatch) -> Tensor:
        """A packed batch of S sentences -> their embeddings, (S, D) float32."""
        return self.pool(self.hidden_states_of(batch), batch)

    def hidden_states_of(self, batch: PackedBatch) -> Tensor:
        """The hidden state to be pooled, (B, T, hidden_size): that of layer l, or the mean of several."""
        if self.layers is None:
            return self.encoder(*batch.inputs)
        return mean_hidden_state(self.encoder, self.layers, batch)

    def pool(self, hidden: Tensor, batch: PackedBatch) -> Tensor:
        """hidden: (B, T, hidden_size) -> embeddings (S, D), in float32 also under autocast."""
        weights = None if self.token_weights is None else self.token_weights(batch)  # (B, T)
        pooled = [
            pool(hidden, batch, weights).float() for pool in pooling_functions(self.pooling, self.encoder)
        ]
        with torch.autocast(hidden.device.type, enabled=False):
            return self.head_modules(torch.cat(pooled, dim=1) if len(pooled) > 1 else pooled[0])

    def forward_all_layers(self, batch: PackedBatch) -> Tensor:
        """A packed batch of S sentences -> each hidden state pooled, (l + 1, S, D), in one pass."""
        return torch.stack([self.pool(h, batch) for h in self.encoder.iter_hidden_states(*batch.inputs)])

    # ------------------------------------------------------------------------------------------------- encode

    def encode(
        self,
        sentences: str | Sequence[str],
        *,
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int = 32,
        show_progress_bar: bool | None = False,
        output_value: str = "sentence_embedding",
        precision: str = "float32",
        convert_to_numpy: bool = True,
        convert_to_tensor: bool = False,
        device: str | None = None,
        normalize_embeddings: bool = False,
        truncate_dim: int | None = None,
    ) -> np.ndarray | Tensor:
        """Embed sentences: (N, D) float32, row i for sentence i; one string gives a vector (D,).

        The options have the names and meanings of sentence-transformers' encode.
        prompt: used instead of the model's own for these sentences: a prefix, or a template with [X]; '' is
        none.
        show_progress_bar: draw a progress bar, if stderr is a terminal.
        convert_to_tensor: return a torch tensor on the CPU instead of a numpy array; so does
        convert_to_numpy=False.
        normalize_embeddings: scale each embedding to unit length, after truncation.
        truncate_dim: keep only the first dimensions of each embedding.
        batch_size: has no effect: a batch is filled up to a number of tokens, not of sentences.
        prompt_name, output_value, precision, device: only the defaults are supported, TypeError for others.
        """
        for name, value, supported, remedy in (
            ("prompt_name", prompt_name, (None,), "give the text of the prompt as prompt"),
            ("output_value", output_value, ("sentence_embedding",), "use model.encoder for token embeddings"),
            ("precision", precision, (None, "float32"), "quantize the returned embeddings"),
            ("device", device, (None,), "move the model first, with model.to(device)"),
        ):
            if value not in supported:
                raise TypeError(f"encode: {name}={value!r} is not supported: {remedy}")
        single = isinstance(sentences, str)
        token_ids = self.tokenize([sentences] if single else sentences, prompt)
        embeddings = self.embed_token_ids(token_ids, show_progress_bar=bool(show_progress_bar))
        embeddings = embeddings[:, :truncate_dim]
        if normalize_embeddings:
            embeddings = F.normalize(embeddings, dim=-1)
        if single:
            embeddings = embeddings[0]
        return embeddings if convert_to_tensor or not convert_to_numpy else embeddings.numpy()

    def embed_token_ids(
        self, token_ids: list[list[int]], all_layers: bool = False, show_progress_bar: bool = False
    ) -> Tensor:
        """Embed N tokenized sentences: (N, D) float32 on the CPU, or (l + 1, N, D) with all_layers=True."""
        return self.map_batches(token_ids, self.forward_all_layers if all_layers else self, show_progress_bar)

    def embed_columns(
        self, texts: Sequence[list[str]], show_progress_bar: bool = False
    ) -> tuple[Tensor, ...]:
        """Embed k columns of N sentences each, such as the two sides of N pairs: k tensors (N, D)."""
        sentences = [sentence for column in check_columns(texts) for sentence in column]
        token_ids = self.tokenize(sentences)
        return self.embed_token_ids(token_ids, show_progress_bar=show_progress_bar).chunk(len(texts))

    @torch.inference_mode()
    def map_batches(
        self,
        token_ids: list[list[int]],
        forward: Callable[[PackedBatch], Tensor],
        show_progress_bar: bool = False,
    ) -> Tensor:
        """Apply a function to N tokenized sentences in packed batches and return the results in input order.

        forward: maps a packed batch of S sentences to a tensor (..., S, D). The result is (..., N, D), on the
        CPU. Dropout is off. Sentences of equal tokens are computed once, which saves time and makes their
        embeddings equal to the last bit: that may depend on the position in the batch.
        """
        if not token_ids:
            return self.map_batches([[self.tokenizer.pad_id]], forward)[..., :0, :]
        distinct = list(dict.fromkeys(map(tuple, token_ids)))
        outputs, output_index = [], {}  # tensors; token ids -> index in their concatenation
        was_training = self.training
        self.eval()
        bar = progress_bar(len(distinct), "sentences", show_progress_bar, desc="encode")
        with bar, fast_encoding(self.encoder, distinct):
            for indices, batch in self.packed_batches(distinct):
                outputs.append(forward(batch).cpu())
                for index in indices:
                    output_index[distinct[index]] = len(output_index)
                bar.update(len(indices))
        self.train(was_training)
        return torch.cat(outputs, dim=-2)[..., [output_index[tuple(ids)] for ids in token_ids], :]

    def packed_batches(self, token_ids: Sequence[Sequence[int]]) -> Iterator[tuple[list[int], PackedBatch]]:
        """Yield packed batches on the model's device, each with the indices of its sentences in token_ids."""
        tokens_per_batch = 2048 if self.device.type == "cpu" else 16384
        lengths = [len(ids) for ids in token_ids]
        for indices, packed_length in length_bucketed_batches(lengths, tokens_per_batch, PACKED_LENGTH):
            batch = pack([token_ids[index] for index in indices], packed_length, self.tokenizer.pad_id)
            yield indices, batch.to(self.device)

    # -------------------------------------------------------------------------------------------------- adapt

    def set_token_weights(self, name: str, texts: Sequence[str] | None = None) -> None:
        """Set how tokens are weighted in the mean.

        name: an entry of TOKEN_WEIGHTS. texts: sentences from which the weights are estimated, required for
        idf. Raises InputError if they are missing, or if the pooling ignores weights.
        """
        check_token_weights(name, self.pooling)
        prompt, token_ids = Prompt(self.prompt, self.tokenizer), texts and self.tokenize(texts)
        weights = make_token_weights(name, prompt, self.encoder.config.vocab_size, token_ids)
        self.token_weights = weights and weights.to(self.device)

    def truncate_dimensions(self, truncate_dim: int) -> None:
        """Keep only the first dimensions of each embedding, with a Dense layer that is saved with the model.

        truncate_dim: 1 to the current number of dimensions. Embeddings that were normalized stay so.
        """
        if not 0 < truncate_dim <= self.dimensions:
            raise InputError(f"truncate_dim {truncate_dim}: choose 1 to {self.dimensions}", "truncate_dim")
        dense = Dense(self.dimensions, truncate_dim, bias=False)
        dense.weight.data = torch.eye(truncate_dim, self.dimensions)
        normalize = [Normalize() for module in self.head_modules[-1:] if isinstance(module, Normalize)]
        self.head_modules.extend(nn.ModuleList([dense, *normalize]).to(self.device))

    # ---------------------------------------------------------------------------------------- save_pretrained

    def save_pretrained(self, folder: str | os.PathLike, dtype: torch.dtype = torch.float32) -> None:
        """Write a folder that tmft, sentence-transformers and transformers open with the same embeddings.

        If another library computes something differently, the model card, README.md, says so.
        dtype: of the saved weights. Each file is replaced at once, one after the other. Raises InputError if
        one cannot be written, or before anything is written if the model cannot be saved.
        """
        folder = Path(folder)
        config = self.to_folder_config()
        if not self.tokenizer.add_special_tokens:
            check_static_config(config)
        save_encoder(self.encoder, folder, dtype=dtype)
        for name, content in self.tokenizer.to_files(self.max_length).items():
            write_file(folder / name, content)
        pooled_width = layer_mix_width(self.layers, self.encoder.config)
        write_st_folder(folder, config, pooled_width, self.tokenizer, dtype)
        write_file(folder / "README.md", self.model_card())

    def to_folder_config(self) -> SentenceTransformersConfig:
        """The settings beyond the encoder, as they are saved in a folder."""
        weights = self.token_weights
        positional = weights is not None and weights.is_positional
        return SentenceTransformersConfig(
            pooling=self.pooling,
            max_length=self.max_length,
            prompt=self.prompt,
            layer_mix=self.layers and format_layer_mix(self.layers),
            token_weights="no-prompt" if positional else None,
            word_weights=None if weights is None or positional else weights.table.cpu(),
            modules=to_saved_modules(self.head_modules),
        )

    def model_card(
        self, data: ModelCardData | None = None, name: str = PLACEHOLDER_PATH, onnx: bool = False
    ) -> str:
        """The model card, README.md, in Markdown.

        data: training details and scores of a run. name: the folder or hub id in the code snippets. onnx:
        whether the model is saved as an ONNX graph.
        """
        config, num_layers = self.to_folder_config(), len(self.encoder.layers)
        usage = UsageInfo(
            transformers_class(self.encoder),
            config.is_plain_mean,
            has_pooler(self.encoder),
            self.compatibility_note,
            onnx,
        )
        return sentence_card(
            self.source,
            num_layers,
            format_layer_mix(self.layers) if self.layers else str(num_layers),
            self.dimensions,
            self.pooling,
            self.max_length,
            usage,
            data or ModelCardData(),
            name,
        )

    @property
    def compatibility_note(self) -> str:
        """What other libraries compute differently with the saved folder, in sentences; '' if nothing."""
        return f"{self.to_folder_config().compatibility_note} {compatibility_note(self.encoder)}".strip()

    # ------------------------------------------- expected by the evaluators of sentence-transformers and MTEB

    similarity_fn_name = "cosine"

    @staticmethod
    def similarity(u: np.ndarray | Tensor, v: np.ndarray | Tensor) -> Tensor:
        """Cosine similarities of u, (N, D) or (D,), with v, (M, D) or (D,): (N, M) float32."""
        u, v = (torch.atleast_2d(torch.as_tensor(x)).float() for x in (u, v))
        return F.normalize(u, dim=-1) @ F.normalize(v, dim=-1).T

    def encode_query(self, sentences: str | Sequence[str], **options) -> np.ndarray | Tensor:
        """The same as encode: queries and documents have the same prompt."""
        return self.encode(sentences, **options)

    encode_document = encode_query

    class model_card_data:
        """Takes the scores that evaluators report to a model, and ignores them: ours are in result.json."""

        @staticmethod
        def set_evaluation_metrics(*_, **__) -> None:
            pass


def check_sentences(sentences: Sequence[str]) -> list[str]:
    """Return the sentences as a list. Raises TypeError for a single string and for entries that are none."""
    if isinstance(sentences, str):
        raise TypeError("a list of sentences is expected, not one string: write [sentence]")
    sentences = list(sentences)
    for index, sentence in enumerate(sentences):
        if not isinstance(sentence, str):
            kind = type(sentence).__name__
            raise TypeError(f"sentence {index} is {str(sentence)[:40]!r}, of type {kind}: give strings")
    return sentences


def check_columns(texts: Sequence[Sequence[str]]) -> list[list[str]]:
    """Return k columns of sentences as lists.

    Raises TypeError if an entry is not a list of strings, and ValueError if the columns differ in length.
    """
    if isinstance(texts, str) or any(isinstance(column, str) for column in texts):
        raise TypeError("lists of sentences are expected, not strings: write ([a, b], [c, d])")
    columns = [check_sentences(column) for column in texts]
    if len({len(column) for column in columns}) > 1:
        counts = ", ".join(str(len(column)) for column in columns)
        raise ValueError(f"the columns have {counts} sentences: give as many in each, they are used in pairs")
    return columns
