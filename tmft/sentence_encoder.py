"""SentenceEncoder: a truncated encoder with its tokenizer and pooling. It maps sentences to embeddings.

In reading order: from_pretrained, tokenize, forward, encode, save_pretrained.
Letters: S sentences of a batch, N sentences in total, B rows of a batch, T tokens in a row, D dimensions of a
hidden state and of an embedding (which has others with some modules and poolings), l layers that are kept.
"""

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tmft.device import check_has_values, choose_device, progress_bar
from tmft.embedding.layer_mix import check_layer_mix, layer_mix_width, mean_hidden_state
from tmft.embedding.modules import Normalize, check_module_widths
from tmft.embedding.prompts import (
    DOCUMENT_PROMPT_NAMES,
    NO_PROMPTS,
    QUERY_PROMPT_NAMES,
    Prompt,
    choose_prompt,
    first_prompt_name,
)
from tmft.embedding.similarity import SIMILARITIES, to_matrix
from tmft.embedding.token_weights import TokenWeights, make_token_weights
from tmft.encoder import BaseEncoder
from tmft.errors import MAX_COUNT, InputError, check_choice, check_count, short_repr
from tmft.packing import PackedBatch, TokenizedCorpus, pack_densely, pack_uniformly
from tmft.pooling import check_pooling_excludes, parse_pooling, pooling_functions
from tmft.speed.matmul import fast_encoding, list_modules
from tmft.speed.operators import no_autocast
from tmft.speed.overlap import copied_behind
from tmft.speed.threads import prepare_for_fork
from tmft.tokenizer import Tokenizer, check_sentences, check_vocab_size, resolve_max_length

if TYPE_CHECKING:
    from tmft.checkpoints.model_card import ModelCardData
    from tmft.checkpoints.model_folder import ModelFolder

TOKENIZE_BLOCK = 4096  # sentences that are tokenized at a time, as lists of Python integers are large

# Its messages are plain lines on stderr, unless the calling program configures logging.
log: logging.Logger = logging.getLogger("tmft")


class SentenceEncoder(nn.Module):
    """Map sentences to embeddings: run an encoder with l layers and pool its last hidden state, number l.

    encoder: an encoder of tmft/models, such as BERT, T5, a decoder, or static word embeddings.
    tokenizer: the tokenizer of the same checkpoint.
    pooling: a name in POOLINGS, or several names as in max+mean; the vectors of several are concatenated.
    max_length: longer sentences are truncated to this number of tokens, special tokens included. None uses
    the limit of the tokenizer.
    modules: modules such as Dense or Normalize that are applied to the pooled embedding, in this order; they
    are kept as head_modules.
    prompt: the default prompt, a prefix of every sentence, or a template in which [X] stands for the
    sentence.
    source: the hub id or folder of the checkpoint, for messages and the model card.
    load_report: a text that says which tensors of the checkpoint were loaded.
    layers: numbers of the hidden states whose mean is pooled; WORD_EMBEDDINGS (-1) may be one of them. None
    pools the last hidden state. (The layers that were kept are the modules in encoder.layers.)

    Other attributes, all of which are saved with the model:

    prompts: {name: prompt}, the prompts among which prompt_name of `encode` chooses. The names query and
        document always exist; their text is '' unless the checkpoint has such a prompt.
    default_prompt_name: the name of the prompt that `encode` uses by default; None for no prompt.
    include_prompt: False leaves the tokens of the prompt out of the pooling, as models such as INSTRUCTOR do.
    similarity_fn_name: how `similarity` compares embeddings: "cosine", "dot", "euclidean" or "manhattan".
    token_weights: the weights of tokens in mean pooling (set_token_weights sets them); None if all tokens
        have the same weight.

    reproducible, which is not saved: True if `encode` is to be reproducible in every call.
    card_data: what the model card says about its training; None if nothing is known.

    Raises InputError if the encoder lacks one of the layers or what the pooling needs, if the tokenizer has
    more tokens than the encoder has word embeddings, or if a module takes embeddings of another width.
    """

    encoder: BaseEncoder
    tokenizer: Tokenizer
    prompts: dict[str, str]
    similarity_fn_name: str
    layers: tuple[int, ...] | None
    pooling: str
    head_modules: nn.Sequential
    reproducible: bool = False

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
        prepare_for_fork()
        pooling_functions(pooling, encoder)  # raises InputError if there is no such pooling
        check_layer_mix(layers, encoder)
        check_vocab_size(tokenizer, encoder.config.vocab_size, source)
        self.encoder, self.tokenizer = encoder, tokenizer
        self.max_length = max_length
        self.prompts, self.similarity_fn_name = dict(NO_PROMPTS), "cosine"
        self.default_prompt_name: str | None = None
        self.prompt = prompt
        self.layers, self.pooling = layers, pooling
        self.token_weights: TokenWeights | None = None
        self.truncate_dim, self.include_prompt = None, True
        self.card_data: ModelCardData | None = None
        self.head_modules = nn.Sequential(*modules)
        check_module_widths(self.head_modules, self.pooled_dimensions, source or "the model")
        self.source, self.load_report = source, load_report
        self.has_warned_about_lengths = False

    def __new__(cls, *given: Any, **named: Any) -> "SentenceEncoder":
        """Return the object that __init__ sets up. Raises InputError for a name in place of an encoder."""
        if given and isinstance(given[0], str | os.PathLike):
            load = f"SentenceEncoder.from_pretrained({short_repr(str(given[0]))})"
            raise InputError(
                f"SentenceEncoder is made of an encoder and a tokenizer: load a model with {load}"
            )
        return super().__new__(cls)

    __new__.__wrapped__ = __init__  # type: ignore[attr-defined]  # whose parameters help() shows

    # ---------------------------------------------------------------------------------------- from_pretrained

    @classmethod
    def from_pretrained(
        cls,
        checkpoint: "str | os.PathLike[str] | ModelFolder",
        layer: int | str | None = None,
        pooling: str | None = None,
        max_length: int | None = None,
        init: str = "pretrained",
        dtype: str | torch.dtype = torch.float32,
        device: str | None = None,
    ) -> "SentenceEncoder":
        """Return the model with the first `layer` layers of a checkpoint, in evaluation mode.

        checkpoint: a hub id with an optional @revision, a folder, or a model of tmft, such as data/tiny. The
        owner sentence-transformers may be left out: all-MiniLM-L6-v2.
        layer: how many layers to keep; None keeps all. A mix such as "1+12" or "word+12" pools the mean of
        several hidden states, see embedding/layer_mix.py.
        pooling: the name of a pooling. None uses the pooling, the token weights and the modules that were
        saved in the folder; if nothing was saved, it is the last token for a causal language model and the
        mean for all others, as in sentence-transformers. If a pooling is given, everything that was saved for
        the pooling and after it is ignored: token weights, modules, truncate_dim, the similarity function.
        max_length: longer sentences are truncated to this number of tokens. None uses the limit that was
        saved in the folder, or else the limit of the tokenizer.
        init: "pretrained" loads the weights. "random" makes an encoder of the same shape with random weights,
        drawn from torch's global generator; no weights are read then.
        dtype: that of the encoder's weights, in which its layers compute: float32, bfloat16 or float16 (or
        their names), or "auto", the one in which most weights are stored. Pooling and the modules after it
        compute in float32. To train the model it has to be float32.
        device: where the model computes: "cuda", another device of torch, or "auto", the GPU if there is one;
        None is the CPU.
        Raises InputError if the checkpoint is damaged or cannot be run.

        Example:

        >>> model = SentenceEncoder.from_pretrained("data/twins/mlm-then-rtd", layer=4)
        >>> len(model.encoder.layers), model.dimensions
        (4, 128)
        """
        from tmft.checkpoints.sentence_folder import load_sentence_encoder

        chosen = choose_device(device) if device else None
        model = load_sentence_encoder(cls, checkpoint, layer, pooling, max_length, init, dtype)
        return model.to(chosen) if chosen else model

    @property
    def device(self) -> torch.device:
        """The device of the model's weights."""
        return self.encoder.embeddings.word.weight.device

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the encoder's weights. Embeddings are float32 in any case."""
        return self.encoder.embeddings.word.weight.dtype

    @property
    def dimensions(self) -> int:
        """D, the number of dimensions of an embedding."""
        return self.truncate_dim or self.full_dimensions

    @property
    def full_dimensions(self) -> int:
        """The number of dimensions of an embedding before truncate_dim is applied."""
        for module in reversed(self.head_modules):
            width: int | None = getattr(module, "out_features", None)
            if width is not None:
                return width
        return self.pooled_dimensions

    @property
    def pooled_dimensions(self) -> int:
        """The number of dimensions of an embedding before the modules after the pooling."""
        num_vectors = sum(pooling.num_vectors for pooling in parse_pooling(self.pooling))
        return num_vectors * layer_mix_width(self.layers, self.encoder.config)

    @property
    def max_length(self) -> int:
        """The number of tokens after which sentences are truncated, special tokens included.

        Setting a number that is no number of tokens of this encoder raises InputError.
        """
        return self.num_kept_tokens

    @max_length.setter
    def max_length(self, max_length: int | None) -> None:
        config = self.encoder.config
        default = config.default_max_length or config.max_tokens
        self.num_kept_tokens = resolve_max_length(self.tokenizer, max_length, config.max_tokens, default)

    max_seq_length = max_length  # its name in sentence-transformers

    @property
    def truncate_dim(self) -> int | None:
        """The number of dimensions that an embedding keeps, the first ones; None if it keeps all.

        The dimensions are dropped after all modules, so an embedding that Normalize has scaled to length 1
        becomes shorter than 1. Setting a number has no effect if an embedding has no more dimensions than
        that; a number below 1 raises InputError.
        """
        return self.num_kept_dimensions

    @truncate_dim.setter
    def truncate_dim(self, truncate_dim: int | None) -> None:
        if truncate_dim is not None:
            check_count("truncate_dim", truncate_dim, 1)
            truncate_dim = truncate_dim if truncate_dim < self.full_dimensions else None
        self.num_kept_dimensions = truncate_dim

    @property
    def prompt(self) -> str:
        """The default prompt, prompts[default_prompt_name]; '' if there is none.

        A text that is set becomes the prompt named "default"; '' means that there is no default prompt.
        """
        return choose_prompt(self.prompts, self.default_prompt_name)

    @prompt.setter
    def prompt(self, text: str) -> None:
        if text == self.prompt:
            return
        if self.default_prompt_name == "default":
            del self.prompts["default"]
        self.default_prompt_name = "default" if text else None
        if text:
            self.prompts["default"] = text

    def keep_layers(self, indices: Sequence[int]) -> None:
        """Remove all layers of the encoder but these, in place; then the last one is pooled, not a mean.

        indices: from 0, in the order in which they will run.
        """
        self.encoder.keep_layers(indices)
        self.layers = None

    # ----------------------------------------------------------------------------------------------- tokenize

    def tokenize(
        self, sentences: Sequence[str], prompt: str | None = None, prompt_name: str | None = None
    ) -> list[list[int]]:
        """Return the token ids of each sentence: special tokens are included, at most max_length ids each.

        prompt, prompt_name: as in `encode`. A warning is logged if sentences were truncated.
        Raises InputError if the token weights of the model exclude the tokens of a prompt of another length.

        Example:

        >>> model = SentenceEncoder.from_pretrained("data/twins/mlm", layer=1)
        >>> token_ids = model.tokenize(["Dogs sleep.", "A man plays a guitar."])
        >>> [len(ids) for ids in token_ids]
        [5, 8]
        """
        return [ids for block in self.tokenized_blocks(sentences, prompt, prompt_name) for ids in block]

    def tokenize_to_corpus(
        self, sentences: Sequence[str], prompt: str | None = None, prompt_name: str | None = None
    ) -> TokenizedCorpus:
        """Return the same token ids as `tokenize`, in one array, which takes an eighth of the memory.

        sentences, prompt, prompt_name: as in `tokenize`. Raises InputError as `tokenize` does.
        """
        return TokenizedCorpus.from_blocks(self.tokenized_blocks(sentences, prompt, prompt_name))

    def tokenized_blocks(
        self, sentences: Sequence[str], prompt: str | None, prompt_name: str | None
    ) -> Iterator[list[list[int]]]:
        """Yield the token ids of each of TOKENIZE_BLOCK sentences at a time.

        sentences, prompt, prompt_name: as in `tokenize`.
        """
        prompt = choose_prompt(self.prompts, self.default_prompt_name, prompt_name, prompt)
        apply_prompt = Prompt(prompt, self.tokenizer)
        if self.token_weights is not None and not self.token_weights.fits(apply_prompt):
            raise InputError(
                "prompt: the token weights of this model exclude the tokens of another prompt: "
                "set model.prompt, then call model.set_token_weights",
                "prompt",
            )
        sentences, num_truncated, has_padding = check_sentences(sentences), 0, False
        for start in range(0, len(sentences), TOKENIZE_BLOCK):
            token_ids, num_truncated_here = apply_prompt(
                sentences[start : start + TOKENIZE_BLOCK], self.max_length
            )
            num_truncated += num_truncated_here
            if self.encoder.config.position_offset:
                has_padding |= any(self.encoder.config.pad_token_id in ids for ids in token_ids)
            yield token_ids
        if has_padding:
            log.warning(
                "a text has the padding token %r: it gets a position here, as other tokens do, but none in "
                "transformers and sentence-transformers, whose embeddings of this text differ",
                self.tokenizer.special_tokens.get("pad_token"),
            )
        if num_truncated:
            counts = (num_truncated, len(sentences), self.max_length)
            log.warning("%d of %d sentences are longer than %d tokens and were truncated", *counts)

    # ------------------------------------------------------------------------------------------------ forward

    def forward(self, batch: PackedBatch) -> Tensor:
        """Return the embeddings of the S sentences of a packed batch: (S, D) float32."""
        hidden = self.hidden_states_of(batch)  # (B, T, D): the output of layer l
        pooled = self.pool_tokens(hidden, batch)  # (S, D): mean_pooling, unless another was chosen
        return self.apply_modules(pooled)  # (S, D): as it is, unless there are modules such as Normalize

    def forward_with(self, batch: PackedBatch, truncate_dim: int | None, num_excluded: int) -> Tensor:
        """Return what `forward` returns, with settings of one call of `encode` instead of the model's own.

        truncate_dim: the number of dimensions to keep; None keeps the number that the model has.
        num_excluded: how many tokens at the start of each sentence are not pooled.
        """
        pooled = self.pool_tokens(self.hidden_states_of(batch), batch, num_excluded)
        return self.apply_modules(pooled, truncate_dim)

    def hidden_states_of(self, batch: PackedBatch) -> Tensor:
        """Return the hidden states that are pooled, (B, T, D).

        They are the output of the last kept layer, or the mean over several layers if self.layers is set.
        """
        if self.layers is None:
            return self.encoder(*batch.inputs)
        return mean_hidden_state(self.encoder, self.layers, batch)

    def pool_tokens(self, hidden: Tensor, batch: PackedBatch, num_excluded: int | None = None) -> Tensor:
        """Return a vector for each of the S sentences of a packed batch: (S, D) float32.

        hidden: (B, T, D), the hidden states of the batch. num_excluded: as in `weights_of_tokens`.
        """
        weights = self.weights_of_tokens(batch, num_excluded)  # None in the paper: all tokens count alike
        functions = pooling_functions(self.pooling, self.encoder)  # mean_pooling alone in the paper
        pooled = [pool(hidden, batch, weights).float() for pool in functions]
        return torch.cat(pooled, dim=1) if len(pooled) > 1 else pooled[0]

    def weights_of_tokens(self, batch: PackedBatch, num_excluded: int | None = None) -> Tensor | None:
        """Return the weights of the tokens in the pooling, (B, T), or None if all have the same weight.

        num_excluded: how many tokens at the start of each sentence are not pooled; None: those of the default
        prompt, if the model does not include prompts.
        """
        weights = None if self.token_weights is None else self.token_weights(batch)
        if num_excluded is None:
            num_excluded = 0 if self.include_prompt else self.num_excluded_tokens(self.prompt)
        if num_excluded:
            is_pooled = (batch.position_ids >= num_excluded).float()
            weights = is_pooled if weights is None else weights * is_pooled
        return weights

    def num_excluded_tokens(self, prompt: str) -> int:
        """Return how many tokens before a sentence are not pooled: none, unless include_prompt is False.

        prompt: the text of the prompt that is used.
        """
        if self.include_prompt or not prompt:
            return 0
        check_pooling_excludes(self.pooling)
        return Prompt(prompt, self.tokenizer).prefix_length

    def apply_modules(self, pooled: Tensor, truncate_dim: int | None = None) -> Tensor:
        """Apply the modules after the pooling, then keep the first dimensions: return (S, D) float32.

        They compute in float32, also under autocast. pooled: (S, D). truncate_dim: as in
        `forward_with`.
        """
        with no_autocast(pooled.device.type):
            return self.head_modules(pooled)[:, : truncate_dim or self.truncate_dim]

    def pool(self, hidden: Tensor, batch: PackedBatch) -> Tensor:
        """Return the embeddings, (S, D) float32, for given hidden states of a batch, (B, T, D)."""
        return self.apply_modules(self.pool_tokens(hidden, batch))

    def forward_all_layers(self, batch: PackedBatch) -> Tensor:
        """Return embeddings from each of the hidden states 0 .. l of a packed batch: (l + 1, S, D) float32.

        Entry [n] has the embeddings that the model would give if it had only n layers. The encoder runs once.
        """
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
        reproducible: bool = False,
    ) -> np.ndarray | Tensor:
        """Return the embeddings of sentences, (N, D) float32; a single string gives a vector, (D,).

        The result is a numpy array, unless a tensor is asked for. The parameters have the names and meanings
        that they have in SentenceTransformer.encode.
        prompt_name: the name of the prompt in self.prompts to use, instead of the default prompt.
        prompt: the text of the prompt to use: a prefix of every sentence, or a template in which [X] stands
        for the sentence; '' means no prompt. If it is given, prompt_name is ignored.
        show_progress_bar: draw a progress bar on stderr, if stderr is a terminal.
        convert_to_tensor: return a torch tensor on the CPU; convert_to_numpy=False does the same.
        truncate_dim: keep only this number of dimensions of each embedding, the first ones. None keeps the
        number that the model has in self.truncate_dim, or all. If the model ends with Normalize, the length
        of an embedding that was truncated is below 1, unless normalize_embeddings is given.
        normalize_embeddings: scale each embedding to unit length, after truncate_dim has been applied.
        reproducible: on one kind of CPU, give each sentence the same bytes in any call, whatever sentences
        are encoded with it and in any order. In bfloat16 this holds for one number of threads. It takes
        longer, most of all for one sentence. model.reproducible = True has the same effect for every call.
        batch_size: ignored, because batches are filled up to a number of tokens, not of sentences; accepted
        so that code written for sentence-transformers runs.
        output_value, precision, device: accepted for the same reason, but a TypeError is raised for any value
        other than the default.
        Raises InputError if the model has no prompt of that name; or, with the name of the sentence, if an
        embedding is not finite.

        Example:

        >>> model = SentenceEncoder.from_pretrained("data/twins/mlm-then-rtd", layer=4)
        >>> embeddings = model.encode(["A man plays a guitar.", "Dogs sleep."])
        >>> embeddings.shape, embeddings.dtype
        ((2, 128), dtype('float32'))
        >>> model.encode("Dogs sleep.", truncate_dim=32).shape
        (32,)
        """
        for name, value, supported, remedy in (
            ("output_value", output_value, ("sentence_embedding",), "use model.encoder for token embeddings"),
            ("precision", precision, (None, "float32"), "quantize the returned embeddings"),
            ("device", device, (None,), "move the model first, with model.to(device)"),
        ):
            if value not in supported:
                raise TypeError(f"encode: {name}={value!r} is not supported: {remedy}")
        single = isinstance(sentences, str)
        texts = [sentences] if isinstance(sentences, str) else check_sentences(sentences)
        if truncate_dim is not None:
            check_count("truncate_dim", truncate_dim, 1)
            if truncate_dim < self.dimensions and not normalize_embeddings:
                self.warn_about_lengths()
        prompt = choose_prompt(self.prompts, self.default_prompt_name, prompt_name, prompt)
        token_ids = self.tokenize_to_corpus(texts, prompt)
        num_excluded = self.num_excluded_tokens(prompt)
        forward = partial(self.forward_with, truncate_dim=truncate_dim, num_excluded=num_excluded)
        embeddings = self.embed_token_ids(token_ids, forward, bool(show_progress_bar), reproducible)
        check_finite_embeddings(embeddings, texts)
        if normalize_embeddings:
            embeddings = F.normalize(embeddings, dim=-1)
        if single:
            embeddings = embeddings[0]
        return embeddings if convert_to_tensor or not convert_to_numpy else embeddings.numpy()

    def warn_about_lengths(self) -> None:
        """Warn, once for each model, that embeddings of length 1 become shorter when they are truncated."""
        is_normalized = any(isinstance(module, Normalize) for module in [*self.head_modules][-2:])
        if is_normalized and not self.has_warned_about_lengths:
            self.has_warned_about_lengths = True
            log.warning(
                "embeddings of this model have length 1, and truncate_dim makes them shorter: give "
                "normalize_embeddings=True before you compare them by their dot product"
            )

    def encode_query(
        self,
        sentences: str | Sequence[str],
        *,
        prompt_name: str | None = None,
        prompt: str | None = None,
        **options: Any,
    ) -> np.ndarray | Tensor:
        """Return the embeddings of queries: those of `encode` with the prompt that the model has for queries.

        sentences, prompt_name, prompt, options: as in `encode`. Without a prompt_name or prompt, it is the
        prompt named query; if that is '', no prompt is used, not even the default prompt.

        Example:

        >>> model = SentenceEncoder.from_pretrained("data/twins/mlm-then-rtd", layer=4)
        >>> model.prompts["query"] = "search: "
        >>> query = model.encode_query("Someone plays the piano.")
        >>> documents = model.encode_document(["Dogs sleep.", "A man plays a guitar.", "It is cold."])
        >>> model.similarity(query, documents).argmax().item()
        1
        """
        if prompt_name is None and prompt is None:
            prompt_name = first_prompt_name(self.prompts, QUERY_PROMPT_NAMES)
        return self.encode(sentences, prompt_name=prompt_name, prompt=prompt, **options)

    def encode_document(
        self,
        sentences: str | Sequence[str],
        *,
        prompt_name: str | None = None,
        prompt: str | None = None,
        **options: Any,
    ) -> np.ndarray | Tensor:
        """Return the embeddings of documents: those of `encode` with the prompt named document.

        sentences, prompt_name, prompt, options: as in `encode_query`.
        """
        if prompt_name is None and prompt is None:
            prompt_name = first_prompt_name(self.prompts, DOCUMENT_PROMPT_NAMES)
        return self.encode(sentences, prompt_name=prompt_name, prompt=prompt, **options)

    @torch.inference_mode()
    def embed_token_ids(
        self,
        token_ids: Sequence[Sequence[int]] | TokenizedCorpus,
        forward: Callable[[PackedBatch], Tensor] | None = None,
        show_progress_bar: bool = False,
        reproducible: bool = False,
    ) -> Tensor:
        """Return the embeddings of N tokenized sentences: (N, D) float32, on the CPU, in input order.

        token_ids: the result of tokenize or of tokenize_to_corpus. forward: what is computed instead, a
        function of a packed batch of S sentences with a result (..., S, D), such as forward_all_layers; the
        result is then (..., N, D).
        show_progress_bar: draw a progress bar on stderr, if it is a terminal. reproducible: as in `encode`.
        Dropout is off and no gradients are computed. Sentences with the same tokens are computed once. This
        saves time, and their embeddings are then equal to the last bit; otherwise the last bits could depend
        on the place of a sentence in its batch, unless reproducible is given.
        """
        check_has_values(self.device)
        if len(token_ids) == 0:
            return self.embed_token_ids([[self.tokenizer.pad_id]], forward)[..., :0, :]
        prepare_for_fork()
        reproducible = reproducible or self.reproducible
        forward = self if forward is None else forward
        corpus, index = TokenizedCorpus.from_sentences(token_ids).distinct()  # index of each sentence in it
        embeddings: Tensor | None = None
        hidden_size = self.encoder.config.hidden_size
        num_tokens = MAX_COUNT if reproducible else len(corpus.tokens)  # on it depends which library computes
        bar = progress_bar(len(corpus), "sentences", show_progress_bar, desc="encode")
        with bar, self.evaluation_mode(), fast_encoding(self.encoder, num_tokens, hidden_size):
            batches = self.packed_batches(corpus, reproducible)
            computed = ((indices, forward(batch)) for indices, batch in batches)
            for indices, output in copied_behind(computed):
                if embeddings is None:
                    embeddings = output.new_empty(*output.shape[:-2], len(corpus), output.shape[-1])
                embeddings[..., indices, :] = output[..., : len(indices), :]
                bar.update(len(indices))
        assert embeddings is not None  # there is a sentence
        return embeddings if len(corpus) == len(token_ids) else embeddings[..., index, :]

    @contextmanager
    def evaluation_mode(self) -> Iterator[None]:
        """Switch dropout off during a with block, also if the block raises an error."""
        training_modules = [module for module in list_modules(self) if module.training]
        try:
            for module in training_modules:
                module.training = False
            yield
        finally:
            for module in training_modules:
                module.training = True

    def packed_batches(
        self, corpus: TokenizedCorpus, reproducible: bool = False
    ) -> Iterator[tuple[np.ndarray, PackedBatch]]:
        """Yield pairs (indices, batch): a packed batch on the model's device, and which sentences it holds.

        indices: (S,), sentence s of the batch is corpus[indices[s]]; batches are formed by length, so the
        sentences are not in their original order. reproducible: the batches are uniform_batches, which may
        have more sentences than indices, copies that fill them up.
        """
        tokens_per_batch, max_scores = 16384, 2**62
        if self.device.type == "cpu":
            tokens_per_batch = 2048
            # scores of 1 MiB for each head: above 32 MiB in all, the system clears the memory of each result
            max_scores = 2**20 // self.dtype.itemsize
        if reproducible:
            batches = pack_uniformly(corpus, self.tokenizer.pad_id)
        else:
            batches = pack_densely(corpus, self.tokenizer.pad_id, tokens_per_batch, max_scores)
        for indices, batch in batches:
            yield indices, batch.to(self.device)

    # -------------------------------------------------------------------------------------------------- adapt

    def set_token_weights(self, name: str, texts: Sequence[str] | None = None) -> None:
        """Set the weights that tokens have in mean pooling; they are saved with the model.

        name: a key of TOKEN_WEIGHTS, such as "idf". texts: sentences from which the weights are estimated;
        required for idf. Raises InputError if texts are required and missing, or if the pooling ignores
        weights.

        Example:

        >>> model = SentenceEncoder.from_pretrained("data/twins/mlm", layer=1)
        >>> model.set_token_weights("idf", ["A man plays.", "A dog sleeps.", "A cat eats."])
        >>> [a, man] = model.tokenizer.backend.encode("a man", add_special_tokens=False).ids
        >>> bool(model.token_weights.table[man] > model.token_weights.table[a])
        True
        """
        prompt = Prompt(self.prompt, self.tokenizer)
        token_ids = None if texts is None else prompt(check_sentences(texts), self.max_length)[0]
        weights = make_token_weights(
            name, prompt, self.encoder.config.vocab_size, token_ids, pooling=self.pooling
        )
        self.token_weights = None if weights is None else weights.to(self.device)

    # ---------------------------------------------------------------------------------------- save_pretrained

    def save_pretrained(self, folder: str | os.PathLike[str], dtype: str | torch.dtype | None = None) -> None:
        """Write the model to a folder that tmft, sentence-transformers and transformers can open.

        All three then compute the same embeddings; where another library computes something differently, the
        model card (README.md in the folder) says so.
        dtype: the dtype of the saved weights, such as "float16"; None: that of the encoder's weights.
        All files are replaced at once, when all of them are complete; those of another model or of a run that
        are in the folder, such as a result.json, are removed. Raises InputError, and leaves the
        folder as it was, if a file cannot be written or the model has something that cannot be saved.

        Example:

        >>> import tempfile
        >>> model = SentenceEncoder.from_pretrained("data/twins/mlm-then-rtd", layer=1)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     model.save_pretrained(folder)
        ...     saved = SentenceEncoder.from_pretrained(folder)
        >>> bool((saved.encode("Dogs sleep.") == model.encode("Dogs sleep.")).all())
        True
        """
        from tmft.checkpoints.sentence_folder import save_sentence_encoder

        save_sentence_encoder(self, folder, dtype)

    save = save_pretrained  # its name in sentence-transformers

    def push_to_hub(self, repo_id: str, private: bool = True) -> str:
        """Upload the folder of `save_pretrained` to a new repository on the hub, and return its URL.

        repo_id: the name of the repository, OWNER/NAME, or NAME for one of your own.
        private: False makes the repository public.
        The token is that of `hf auth login`, or in the environment variable HF_TOKEN. Raises InputError if
        there is no such token, if the repository exists, or if the upload fails.
        """
        from tmft.checkpoints.sentence_folder import push_sentence_encoder

        return push_sentence_encoder(self, repo_id, private)

    # ---------------------------------------------------- expected by the evaluators of sentence-transformers

    def similarity(self, u: np.ndarray | Tensor, v: np.ndarray | Tensor) -> Tensor:
        """Return the similarity of each embedding in u with each one in v: (N, M) float32.

        It is the cosine, unless similarity_fn_name says something else; distances are negative.
        u: (N, D), or (D,) for N = 1. v: (M, D), or (D,) for M = 1. Raises TypeError for sentences.

        Example:

        >>> model = SentenceEncoder.from_pretrained("data/twins/mlm-then-rtd", layer=4)
        >>> u = model.encode(["A man plays a guitar.", "A man is playing guitar.", "Dogs sleep."])
        >>> print(model.similarity(u, u).numpy().round(2))
        [[1.   0.84 0.35]
         [0.84 1.   0.37]
         [0.35 0.37 1.  ]]
        """
        check_choice("similarity_fn_name", self.similarity_fn_name, SIMILARITIES)
        return SIMILARITIES[self.similarity_fn_name][0](to_matrix(u), to_matrix(v))

    def similarity_pairwise(self, u: np.ndarray | Tensor, v: np.ndarray | Tensor) -> Tensor:
        """Return the similarity of each row of u with the same row of v, as in `similarity`: (N,) float32.

        u, v: (N, D), or (D,) for N = 1. Raises TypeError for sentences: embed them first.

        Example:

        >>> u = v = SentenceEncoder.from_pretrained("data/tiny").encode(["Dogs sleep.", "It is cold."])
        >>> SentenceEncoder.from_pretrained("data/tiny").similarity_pairwise(u, v).shape
        torch.Size([2])
        """
        check_choice("similarity_fn_name", self.similarity_fn_name, SIMILARITIES)
        return SIMILARITIES[self.similarity_fn_name][1](to_matrix(u), to_matrix(v))

    def get_sentence_embedding_dimension(self) -> int:
        """Return D, the number of dimensions of an embedding, the same as `dimensions`."""
        return self.dimensions

    get_embedding_dimension = get_sentence_embedding_dimension

    class model_card_data:
        """Accept the scores that evaluators of sentence-transformers report to a model, and ignore them.

        The scores of tmft are in the result.json of a run.
        """

        @staticmethod
        def set_evaluation_metrics(*_: Any, **__: Any) -> None:
            pass


def check_finite_embeddings(
    embeddings: np.ndarray | Tensor, sentences: Sequence[str], source: str = ""
) -> None:
    """Raise InputError, which names the sentence, if an embedding has a value that is NaN or infinite.

    embeddings: (N, D), or (l + 1, N, D) of all hidden states; sentences: N of them. source: the name of the
    model, if the user may have given several.
    """
    embeddings = torch.as_tensor(embeddings)
    if embeddings.sum().isfinite() or embeddings.isfinite().all():  # a sum is fast, but may overflow
        return
    index = (~embeddings.isfinite()).nonzero()[0].tolist()[-2]
    name = f"sentence {index} ({short_repr(sentences[index])})"
    problem = f"the embedding of {name} has values that are not finite"
    remedy = "choose another precision or layer, or check the weights of the model"
    raise InputError(f"{source and f'{source}: '}{problem}: {remedy}")
