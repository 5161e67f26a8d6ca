"""Causal language modeling: a model predicts each token of a sentence from the tokens before it.

    model input      <s> a man plays music
    labels           a man plays music         those of the first four tokens; the last token has none

The model is a decoder, or a BERT whose tokens are kept from attending to later ones (is_decoder in
config.json). A BERT predicts with its head for masked tokens, a decoder with its output layer. The batches
are those of masked language modeling; the label of a token is the next one.

Letters in this file: S sentences, n tokens of all S sentences, M tokens with a label, T tokens in a row, D
hidden_size, V vocab_size.
"""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tmft.checkpoints.model_folder import ModelFolder
from tmft.checkpoints.save import save_encoder
from tmft.encoder import BaseEncoder, EncoderConfig, init_weights
from tmft.errors import InputError
from tmft.models.families import FAMILIES
from tmft.models.rotary_families import DecoderConfig
from tmft.packing import pack_arrays
from tmft.pretraining.corpus import TokenizedCorpus
from tmft.pretraining.masking import LabeledBatch, indices_of_process
from tmft.pretraining.token_heads import MaskedLM, MaskedLMHead, TokenPrediction, read_head, read_mlm_head
from tmft.tokenizer import Tokenizer

LM_HEAD = {"lm_head.weight": "weight"}  # weight in the checkpoint -> weight of a linear map


@dataclass(frozen=True)
class NextTokens:
    """Makes batches in which the label of each token is the next token of its sentence.

    pad_id: id of padding.
    """

    pad_id: int

    @classmethod
    def from_tokenizer(cls, tokenizer: Tokenizer) -> "NextTokens":
        """Make a NextTokens with the padding token of a tokenizer."""
        return cls(tokenizer.pad_id)

    def make_batches(
        self,
        corpus: TokenizedCorpus,
        rng: np.random.Generator,
        batch_sizes: list[int],
        T: int,
        rank: int = 0,
        world_size: int = 1,
    ) -> tuple[list[LabeledBatch], int]:
        """Pack all sentences of a corpus into batches, in rows of T tokens.

        The parameters are those of Masking.make_batches; rng is not used. Returns this process's part of each
        batch, and the number of labels of all batches and processes together.
        """
        batches = []
        for indices in indices_of_process(batch_sizes, rank, world_size):
            part = corpus.select(indices)
            tokens, lengths = part.tokens.astype(np.int64), np.diff(part.offsets)
            packed, positions = pack_arrays(tokens, lengths, T, self.pad_id)
            has_next = np.ones(len(tokens), dtype=bool)
            has_next[part.offsets[1:][lengths > 0] - 1] = False  # the last token of each sentence
            [labeled] = has_next.nonzero()
            labels = torch.from_numpy(tokens[labeled + 1])
            batches.append(LabeledBatch(packed, torch.from_numpy(positions[labeled]), labels))
        return batches, int(np.maximum(np.diff(corpus.offsets) - 1, 0).sum())


class CausalBert(MaskedLM):
    """A BERT, an ELECTRA or a RoBERTa that predicts the next token with its head for masked tokens."""

    objective = "clm"

    def __init__(self, encoder: BaseEncoder, head: MaskedLMHead | None = None, head_layout: int = 0):
        """Put the encoder and the head together; from now on no token attends to later ones.

        head, head_layout: see MaskedLM.
        """
        super().__init__(encoder, head, head_layout)
        encoder.config = replace(encoder.config, is_decoder=True)  # type: ignore[call-arg]

    def architecture(self) -> str:
        """Return the name of the transformers class that opens the files of `save`."""
        return FAMILIES[self.encoder.config.model_type].causal_lm_class


class CausalLM(TokenPrediction):
    """A decoder and its output layer, which maps hidden states to the logits of all tokens, without bias.

    The output layer is the matrix of the word embeddings if tie_word_embeddings is true in config.json.
    """

    logit_limit: float | None
    objective = "clm"

    def __init__(self, encoder: BaseEncoder, lm_head: nn.Linear | None = None):
        """Put the decoder and the output layer together.

        lm_head: None makes a new one with random weights, unless the word embeddings are used. Raises
        InputError if the family has no such output layer, or if its tokens attend to later ones.
        """
        super().__init__()
        config = encoder.config
        if not isinstance(config, DecoderConfig) or not FAMILIES[config.model_type].causal_lm_class:
            supported = ", ".join(name for name, family in FAMILIES.items() if family.causal_lm_class)
            raise InputError(
                f"a {config.model_type} has no head for causal language modeling: choose one of {supported}",
                "task",
            )
        if not config.predicts_next_token:
            raise InputError(
                f"task clm: tokens of this {config.model_type} attend to later ones (config.json), and would "
                "see what they are to predict: choose a checkpoint that is causal",
                "task",
            )
        self.encoder, self.lm_head = encoder, lm_head
        self.logit_limit = config.final_logit_softcapping
        if config.tie_word_embeddings:
            self.lm_head = None
        elif lm_head is None:
            self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
            init_weights(self.lm_head, config.initializer_range)

    def logits(self, batch: LabeledBatch) -> Tensor:
        """Return the logits of the next tokens, (M, V)."""
        hidden = self.encoder(*batch.packed.inputs).flatten(0, 1)[batch.label_positions]  # (M, D)
        output_layer = self.encoder.embeddings.word if self.lm_head is None else self.lm_head
        logits = F.linear(hidden, output_layer.weight)
        limit = self.logit_limit
        return logits if limit is None else limit * torch.tanh(logits / limit)

    def forward(self, batch: LabeledBatch) -> dict[str, Tensor]:
        return super().forward(batch.with_padded_labels())

    def save(self, folder: Path, dtype: torch.dtype = torch.float32) -> None:
        """Write config.json and the weights of decoder and output layer, with the names of transformers.

        dtype: that of the weights in the file.
        """
        family = FAMILIES[self.encoder.config.model_type]
        head = {} if self.lm_head is None else {"lm_head.weight": self.lm_head.weight}
        prefix = family.prefixes[0]
        save_encoder(self.encoder, folder, head, family.causal_lm_class, dtype=dtype, prefix=prefix)


def predicts_with_mlm_head(config: EncoderConfig) -> bool:
    """Return whether a family predicts the next token with its head for masked tokens."""
    family = FAMILIES[config.model_type]
    return bool(family.mlm_class and family.causal_lm_class)


def add_causal_lm_head(encoder: BaseEncoder) -> CausalLM | CausalBert:
    """Return an encoder with a new head or output layer. Raises InputError in the same cases as CausalLM."""
    return CausalBert(encoder) if predicts_with_mlm_head(encoder.config) else CausalLM(encoder)


def load_causal_lm(encoder: BaseEncoder, folder: ModelFolder) -> tuple[CausalLM | CausalBert, str]:
    """Return a model with the head or output layer of its checkpoint, and a sentence that says which it is.

    folder: that of the checkpoint. If it has none, as checkpoints of sentence encoders, a decoder predicts
    with its word embeddings, and a BERT gets a new head. Raises InputError in the same cases as CausalLM.
    """
    config, report = encoder.config, "predicts with the word embeddings"
    has_output_layer = bool(FAMILIES[config.model_type].causal_lm_class)
    if predicts_with_mlm_head(config):
        head, head_layout = read_mlm_head(folder, config) or (None, 0)
        source = "the checkpoint's own head" if head else "a new head on its word embeddings"
        was = "" if config.predicts_next_token else "; from now on no token attends to later ones"
        return CausalBert(encoder, head, head_layout), f"predicts with {source}{was}"
    if not isinstance(config, DecoderConfig) or not has_output_layer or config.tie_word_embeddings:
        return CausalLM(encoder), report
    shape = config.hidden_size, config.vocab_size
    head_and_layout = read_head(folder, [LM_HEAD], lambda: nn.Linear(*shape, bias=False))
    if head_and_layout is None:
        encoder.config = replace(config, tie_word_embeddings=True)
        return CausalLM(encoder), f"the checkpoint has no output layer: {report}"
    return CausalLM(encoder, head_and_layout[0]), "uses the checkpoint's own output layer"
