"""Token weights: how much each token counts in the mean over a sentence.

A sentence is sum w_t h_t / sum w_t over its tokens t, with hidden states h and one weight w per entry of the
vocabulary: 1 for all; 0 for special tokens; 0 for frequent words, punctuation and subwords; idf; 1 for [MASK]
alone. If all weights of a sentence are 0, it gets the plain mean. One scheme depends on positions instead of
the
vocabulary: the tokens of the sentence without the prompt around it.
Source: Stankevičius and Lukoševičius 2024, arXiv:2408.08073, section 3.3.

Letters in this file: V entries of the vocabulary, B rows, T tokens in a row.
"""

import math
import string
from collections import Counter
from collections.abc import Callable

import torch
from torch import Tensor, nn

from tmft.checkpoints.tokenizers import Tokenizer
from tmft.embedding.prompts import Prompt
from tmft.errors import InputError, did_you_mean
from tmft.packing import PackedBatch

# The most frequent tokens, which PromptBERT excludes (github.com/kongds/Prompt-BERT), of an uncased English
# BERT. Some, such as man, dog and playing, are frequent in captions only: the list was made on test sets.
PROMPTBERT_STOPWORDS = (
    ". a the in , is to of and ' on man - s with for \" at ##s woman are it two that you dog said "
    "playing i an as was from : by white"
).split()
NUM_FREQUENT = 33  # excluded tokens when they are counted in a corpus, as many as in the paper
PUNCTUATION = frozenset(string.punctuation) | frozenset("“”‘’„«»–—…€£¥•·¡¿")

TokenIds = list[list[int]]
# A scheme maps a tokenizer and the token ids of texts (None: no texts) to {token id: weight}, if it is not 1.
Scheme = Callable[[Tokenizer, TokenIds | None], dict[int, float]]


# ----------------------------------------------------------------------------------------------- the schemes


def uniform(tokenizer: Tokenizer, texts: TokenIds | None) -> dict[int, float]:
    """Weight 1 for all tokens."""
    return {}


def no_special(tokenizer: Tokenizer, texts: TokenIds | None) -> dict[int, float]:
    """Weight 0 for special tokens."""
    return dict.fromkeys(special_ids(tokenizer), 0.0)


def content_words(tokenizer: Tokenizer, texts: TokenIds | None) -> dict[int, float]:
    """Weight 0 for special tokens, punctuation, subwords, and the most frequent tokens.

    Frequent tokens are PROMPTBERT_STOPWORDS or, if texts are given, the NUM_FREQUENT most frequent ones
    there. PromptBERT calls this "minus biases": in BERT such tokens lie close together, whatever they mean.
    """
    vocabulary = tokenizer.backend.get_vocab()
    if texts is None:  # a word is spelled `man` in WordPiece and `▁man` in SentencePiece
        spellings = (spelling for token in PROMPTBERT_STOPWORDS for spelling in (token, f"▁{token}"))
        frequent = {vocabulary[token] for token in spellings if token in vocabulary}
    else:
        counts = Counter(id for ids in texts for id in ids)
        ordinary = counts.keys() - special_ids(tokenizer)
        frequent = set(sorted(ordinary, key=lambda id: (-counts[id], id))[:NUM_FREQUENT])
    metaspace = any(token.startswith("▁") for token in vocabulary)
    excluded = {id for token, id in vocabulary.items() if is_subword_or_punctuation(token, metaspace)}
    return dict.fromkeys(excluded | frequent | special_ids(tokenizer), 0.0)


def is_subword_or_punctuation(token: str, metaspace: bool) -> bool:
    """Whether a token is punctuation or continues a word: ##s, or a token without ▁ if metaspace is True."""
    is_subword = not token.startswith("▁") if metaspace else token.startswith("##")
    return is_subword or set(token.removeprefix("▁")) <= PUNCTUATION


def idf(tokenizer: Tokenizer, texts: TokenIds | None) -> dict[int, float]:
    """Inverse document frequency: log(N / df) if df of N texts contain the token, log N if none does.

    [CLS] and [SEP] are in every text, so their weight is 0, as is that of all words of a prompt.
    """
    df = Counter(id for ids in texts for id in set(ids))
    N = len(texts)
    return {id: math.log(N / df.get(id, 1)) for id in tokenizer.backend.get_vocab().values()}


def mask_token(tokenizer: Tokenizer, texts: TokenIds | None) -> dict[int, float]:
    """Weight 1 for [MASK] and 0 for all other tokens, as in PromptBERT; for a prompt with a [MASK]."""
    if "mask_token" not in tokenizer.special_tokens:
        raise InputError(
            "token_weights mask-token: the vocabulary has no [MASK]: choose other token weights",
            "token_weights",
        )
    mask_id = tokenizer.backend.token_to_id(tokenizer.special_tokens["mask_token"])
    return {id: float(id == mask_id) for id in tokenizer.backend.get_vocab().values()}


TOKEN_WEIGHTS: dict[str, Scheme] = {
    "uniform": uniform,
    "no-special": no_special,
    "no-prompt": uniform,  # and weight 0 for the tokens before and after the sentence, see POSITIONAL
    "content-words": content_words,
    "idf": idf,
    "mask-token": mask_token,
}
NEEDS_TEXT = ("idf",)  # schemes that are estimated from texts
POSITIONAL = ("no-prompt",)  # schemes that exclude the tokens of the prompt by their position
UNWEIGHTED_POOLINGS = ("cls", "max", "lasttoken")  # poolings that ignore token weights


def special_ids(tokenizer: Tokenizer) -> set[int]:
    return {tokenizer.backend.token_to_id(token) for token in tokenizer.special_tokens.values()}


def check_token_weights(name: str | None, pooling: str | None = None) -> None:
    """Raise InputError for an unknown scheme, or one that the pooling (None: mean) ignores; None is valid."""
    if name is not None and name not in TOKEN_WEIGHTS:
        known = f"{', '.join(TOKEN_WEIGHTS)}{did_you_mean(name, TOKEN_WEIGHTS)}"
        raise InputError(f"token_weights {name!r}: choose one of {known}", "token_weights")
    poolings = (pooling or "mean").split("+")
    if name not in (None, "uniform") and all(part in UNWEIGHTED_POOLINGS for part in poolings):
        raise InputError(
            f"token_weights {name} have no effect with pooling {pooling}: choose pooling mean",
            "token_weights",
            "pooling",
        )


def make_token_weights(
    name: str, prompt: Prompt, vocab_size: int, texts: TokenIds | None = None
) -> "TokenWeights | None":
    """Build the token weights of a scheme for sentences in a prompt; None if all weights are equal.

    name: an entry of TOKEN_WEIGHTS. vocab_size: rows of the word embeddings. texts: token ids of the
    sentences from which the weights are estimated. Raises InputError if the scheme is unknown or lacks texts
    or a [MASK].
    """
    check_token_weights(name)
    if name in NEEDS_TEXT and not texts:
        raise InputError(
            f"token_weights {name} are estimated from texts, and there are none: give texts", "token_weights"
        )
    table = torch.ones(vocab_size)
    if name in POSITIONAL:
        around = prompt.prefix_length or prompt.suffix_length
        return TokenWeights(table, prompt.prefix_length, prompt.suffix_length) if around else None
    if name == "mask-token" and "mask_token" in prompt.tokenizer.special_tokens and not prompt.has_mask:
        raise InputError(
            "token_weights mask-token: the prompt has no [M]: choose one such as T4",
            "token_weights",
            "prompt",
        )
    for id, weight in TOKEN_WEIGHTS[name](prompt.tokenizer, texts).items():
        table[id] = weight
    return None if (table == 1).all() else TokenWeights(table)


class TokenWeights(nn.Module):
    """Maps a packed batch to the weights of its tokens.

    table: (V,) weights of 0 or more by token id. prefix_length, suffix_length: the number of tokens at the
    beginning and the end of each sentence whose weight is 0, whatever they are.
    """

    def __init__(self, table: Tensor, prefix_length: int = 0, suffix_length: int = 0):
        super().__init__()
        self.register_buffer("table", table, persistent=False)
        self.prefix_length, self.suffix_length = prefix_length, suffix_length

    @property
    def is_positional(self) -> bool:
        """Whether tokens are excluded by their position."""
        return bool(self.prefix_length or self.suffix_length)

    def forward(self, batch: PackedBatch) -> Tensor:
        """-> (B, T) float32"""
        weights = self.table[batch.input_ids]
        if self.is_positional:
            num_tokens = torch.bincount(
                batch.sentence_ids.flatten()
            )  # (S + 1,): of padding, of each sentence
            length = num_tokens[batch.sentence_ids]  # (B, T): of the sentence that a token belongs to
            position = batch.position_ids
            weights = weights * ((position >= self.prefix_length) & (position < length - self.suffix_length))
        return weights
