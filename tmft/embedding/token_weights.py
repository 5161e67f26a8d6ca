"""Token weights: how much each token counts in the mean over a sentence.

The embedding of a sentence is sum w_t h_t / sum w_t over its tokens t, with hidden states h and weights w. If
all weights of a sentence are 0, it gets the unweighted mean. A scheme, an entry of TOKEN_WEIGHTS, gives each
token of the vocabulary a weight; "no-prompt" excludes tokens by their position instead.

  uniform        weight 1 for all tokens
  no-special     weight 0 for special tokens
  no-prompt      weight 0 for special tokens and the tokens of the prompt around the sentence
  no-mask        weight 0 for [MASK], which a prompt has
  content-words  weight 0 for punctuation, subwords, frequent words and special tokens other than [MASK]
  idf            inverse document frequency
  mask-token     weight 1 for [MASK], 0 for all other tokens

Source: Stankevičius and Lukoševičius 2024, arXiv:2408.08073, section 3.3.

Letters: V tokens in the vocabulary, S sentences, B rows of a batch, T tokens in a row.
"""

import math
import string
from collections import Counter
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from tmft.embedding.prompts import Prompt
from tmft.errors import InputError, check_choice
from tmft.packing import PackedBatch
from tmft.tokenizer import Tokenizer

# Frequent tokens of an uncased English BERT that PromptBERT excludes (github.com/kongds/Prompt-BERT). Some of
# them, such as man, dog and playing, are frequent only in captions: the list was made from test sets.
PROMPTBERT_STOPWORDS = (
    ". a the in , is to of and ' on man - s with for \" at ##s woman are it two that you dog said "
    "playing i an as was from : by white"
).split()
NUM_FREQUENT = 33  # how many frequent tokens are excluded if they are counted in texts, as in the paper
PUNCTUATION = frozenset(string.punctuation) | frozenset("“”‘’„«»–—…€£¥•·¡¿")

TokenIds = list[list[int]]
# A scheme is a function of a tokenizer and the token ids of texts (None if there are no texts). It returns
# {token id: weight}; tokens that are not in the dict have weight 1.
WeightFunction = Callable[[Tokenizer, TokenIds | None], dict[int, float]]


# ----------------------------------------------------------------------------------------------- the schemes


def content_word_weights(tokenizer: Tokenizer, texts: TokenIds | None) -> dict[int, float]:
    """Return weight 0 for punctuation, subwords, frequent tokens and special tokens other than [MASK].

    The frequent tokens are the NUM_FREQUENT most frequent ones in the texts, or PROMPTBERT_STOPWORDS if there
    are no texts. A byte-level BPE may spell the first word of a text as if it continued one; such a token has
    weight 0, too. PromptBERT calls this "minus biases": the embeddings of such tokens in BERT lie close
    together, whatever the tokens mean.
    """
    vocabulary, decoder = tokenizer.backend.get_vocab(), tokenizer.backend.decoder
    marker = word_marker(vocabulary)
    if texts is None:  # a word is spelled `man` in WordPiece, `▁man` in SentencePiece, `Ġman` in a BPE
        spellings = (spelling for token in PROMPTBERT_STOPWORDS for spelling in (token, marker + token))
        frequent = {vocabulary[token] for token in spellings if token in vocabulary}
    else:
        counts = Counter(id for ids in texts for id in ids)
        ordinary = counts.keys() - special_ids(tokenizer)
        frequent = set(sorted(ordinary, key=lambda id: (-counts[id], id))[:NUM_FREQUENT])
    excluded = set()
    for token, id in vocabulary.items():
        is_subword = token.startswith(marker) == (marker == "##")
        text = token if decoder is None else decoder.decode([token])  # byte-level BPE spells “ as âĢľ
        if is_subword or set(text.strip()) <= PUNCTUATION:
            excluded.add(id)
    excluded |= frequent | special_ids(tokenizer)
    if "mask_token" in tokenizer.special_tokens:  # with a prompt, [MASK] has most of the meaning
        excluded.discard(mask_id(tokenizer))
    return dict.fromkeys(excluded, 0.0)


def word_marker(vocabulary: Iterable[str]) -> str:
    """Return how a vocabulary marks where words begin: by the marker with which most of its tokens begin.

    "##" (WordPiece): continuations of a word begin with it, as in ##s. "▁" (SentencePiece) and "Ġ"
    (byte-level BPE): first tokens of a word begin with it, as in ▁man.
    """
    counts = {marker: sum(token.startswith(marker) for token in vocabulary) for marker in ("##", "▁", "Ġ")}
    return max(counts, key=lambda marker: counts[marker])


def idf_weights(tokenizer: Tokenizer, texts: TokenIds | None) -> dict[int, float]:
    """Return the inverse document frequency of each token: log(N / df) if df of N texts contain it.

    A token in no text has log N. [CLS], [SEP] and the words of a prompt are in every text, so their weight
    is 0.
    """
    assert texts is not None  # see NEEDS_TEXT
    df = Counter(id for ids in texts for id in set(ids))
    N = len(texts)
    return {id: math.log(N / df.get(id, 1)) for id in tokenizer.backend.get_vocab().values()}


def mask_id(tokenizer: Tokenizer) -> int:
    """Return the id of [MASK], which the vocabulary has to have."""
    return tokenizer.backend.get_vocab()[tokenizer.special_tokens["mask_token"]]


TOKEN_WEIGHTS: dict[str, WeightFunction] = {
    "uniform": lambda tokenizer, texts: {},
    "no-special": lambda tokenizer, texts: dict.fromkeys(special_ids(tokenizer), 0.0),
    "no-prompt": lambda tokenizer, texts: {},  # TokenWeights excludes the tokens around it, see POSITIONAL
    "content-words": content_word_weights,
    "idf": idf_weights,
    # as in PromptBERT, for prompts with a [MASK]
    "mask-token": lambda tokenizer, texts: (
        dict.fromkeys(tokenizer.backend.get_vocab().values(), 0.0) | {mask_id(tokenizer): 1.0}
    ),
    # "avg. no [MASK]" in figure 4 of Stankevičius and Lukoševičius 2024
    "no-mask": lambda tokenizer, texts: {mask_id(tokenizer): 0.0},
}
NEEDS_TEXT = ("idf",)  # schemes that are estimated from texts
POSITIONAL = ("no-prompt",)  # schemes that exclude the tokens of the prompt by their position
UNWEIGHTED_POOLINGS = ("cls", "max", "lasttoken", "pooler", "decoder")  # poolings that ignore token weights


def special_ids(tokenizer: Tokenizer) -> set[int]:
    """Return the ids of the special tokens of a tokenizer."""
    ids = map(tokenizer.backend.token_to_id, tokenizer.special_tokens.values())
    return {id for id in ids if id is not None}


def check_token_weights(scheme: str | None, pooling: str | None = None) -> None:
    """Raise InputError if a scheme is unknown, or has no effect with a pooling.

    scheme: a key of TOKEN_WEIGHTS; None, for no weights, is valid. pooling: a name such as max+mean; None
    means mean.
    """
    if scheme is not None:
        check_choice("token_weights", scheme, TOKEN_WEIGHTS)
    poolings = (pooling or "mean").split("+")
    if scheme not in (None, "uniform") and all(part in UNWEIGHTED_POOLINGS for part in poolings):
        raise InputError(
            f"token_weights {scheme} have no effect with `pooling` {pooling}: choose pooling mean",
            "token_weights",
            "pooling",
        )


def make_token_weights(
    scheme: str,
    prompt: Prompt,
    vocab_size: int,
    texts: TokenIds | None = None,
    pooling: str | None = None,
) -> "TokenWeights | None":
    """Return the token weights of a scheme; None if all weights are equal.

    vocab_size: the number of word embeddings of the encoder. scheme, pooling: see check_token_weights.
    """
    check_token_weights(scheme, pooling)
    if scheme in NEEDS_TEXT and not texts:
        raise InputError(
            f"token_weights {scheme} are estimated from texts, and there are none: give texts",
            "token_weights",
        )
    table = torch.ones(vocab_size)
    if scheme in POSITIONAL:
        around = prompt.prefix_length or prompt.suffix_length
        return TokenWeights(table, prompt.prefix_length, prompt.suffix_length) if around else None
    if scheme in ("mask-token", "no-mask") and not prompt.has_mask:
        raise InputError(
            f"token_weights {scheme}: the `prompt` has no [M]: choose one such as T4",
            "token_weights",
            "prompt",
        )
    for id, weight in TOKEN_WEIGHTS[scheme](prompt.tokenizer, texts).items():
        table[id] = weight
    return None if (table == 1).all() else TokenWeights(table)


class TokenWeights(nn.Module):
    """Look up the weight of each token of a packed batch.

    table: (V,) float32, the weight of each token of the vocabulary, 0 or more. prefix_length, suffix_length:
    how many tokens at the beginning and at the end of each sentence have weight 0, whatever they are.
    """

    table: Tensor

    def __init__(self, table: Tensor, prefix_length: int = 0, suffix_length: int = 0):
        super().__init__()
        self.register_buffer("table", table, persistent=False)
        self.prefix_length, self.suffix_length = prefix_length, suffix_length

    @property
    def is_positional(self) -> bool:
        """Whether tokens are excluded by their position."""
        return bool(self.prefix_length or self.suffix_length)

    def fits(self, prompt: Prompt) -> bool:
        """Return whether the excluded tokens are those around a sentence in this prompt."""
        excluded = (self.prefix_length, self.suffix_length)
        return not self.is_positional or excluded == (prompt.prefix_length, prompt.suffix_length)

    def forward(self, batch: PackedBatch) -> Tensor:
        """Return the weights of all tokens of a batch, (B, T) float32."""
        weights = self.table[batch.input_ids]
        if self.is_positional:
            # (S + 1,): how many positions are padding, and how many tokens each sentence has
            num_tokens = torch.bincount(batch.attention_mask.flatten())
            length = num_tokens[batch.attention_mask]  # (B, T): length of the sentence of each token
            position = batch.position_ids
            weights = weights * ((position >= self.prefix_length) & (position < length - self.suffix_length))
        return weights
