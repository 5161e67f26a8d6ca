"""Token weights: one number per word of the vocabulary says how much a token counts in the mean.

A sentence is sum w_t h_t / sum w_t over its tokens t, with hidden states h. All choices of tokens are such
weights: 1 for all; 0 for special tokens; 0 for frequent words, punctuation and parts of words; idf; 1 for
[MASK] alone. Where all weights of a sentence are 0, it is the plain mean. One choice is no matter of the
vocabulary but of the place: the tokens of the sentence without the prompt around it.
Source: Stankevičius and Lukoševičius 2024, section 3.3.

Letters in this file: V words in the vocabulary, B rows, T tokens in a row.
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

# The most frequent tokens that PromptBERT leaves out (github.com/kongds/Prompt-BERT), of an uncased English
# BERT. Some, such as man, dog and playing, are frequent in captions only: the list was made on test sets.
FREQUENT = (
    ". a the in , is to of and ' on man - s with for \" at ##s woman are it two that you dog said "
    "playing i an as was from : by white"
).split()
COUNT = 33  # of the most frequent tokens of a corpus, as many as the paper leaves out
PUNCTUATION = frozenset(string.punctuation) | frozenset("“”‘’„«»–—…€£¥•·¡¿")

Ids = list[list[int]]


def all_tokens(tokenizer: Tokenizer, texts: Ids | None) -> dict[int, float]:
    return {}


def words(tokenizer: Tokenizer, texts: Ids | None) -> dict[int, float]:
    """All tokens but the special ones."""
    return dict.fromkeys(special_ids(tokenizer), 0.0)


def content(tokenizer: Tokenizer, texts: Ids | None) -> dict[int, float]:
    """No special tokens, punctuation, parts of words, and none of the most frequent tokens: FREQUENT or, of
    texts, their own. PromptBERT's "minus biases": in BERT, such tokens lie together whatever they mean."""
    vocabulary = tokenizer.backend.get_vocab()
    if texts is None:
        spelled = (form for token in FREQUENT for form in (token, f"▁{token}"))  # as WordPiece, SentencePiece
        frequent = {vocabulary[token] for token in spelled if token in vocabulary}
    else:
        counts = Counter(id for ids in texts for id in ids)
        known = counts.keys() - special_ids(tokenizer)
        frequent = set(sorted(known, key=lambda id: (-counts[id], id))[:COUNT])
    metaspace = any(token.startswith("▁") for token in vocabulary)
    dropped = {id for token, id in vocabulary.items() if is_part_or_mark(token, metaspace)}
    return dict.fromkeys(dropped | frequent | special_ids(tokenizer), 0.0)


def is_part_or_mark(token: str, metaspace: bool) -> bool:
    """Whether a token goes on a word (##s; in SentencePiece what has no ▁ before it) or is punctuation."""
    part = not token.startswith("▁") if metaspace else token.startswith("##")
    return part or set(token.removeprefix("▁")) <= PUNCTUATION


def idf(tokenizer: Tokenizer, texts: Ids | None) -> dict[int, float]:
    """log(N / df) of N texts of which df have the token; log N for one that none has, the highest weight.

    [CLS] and [SEP] are in every text, and so weigh 0, like every word of a prompt.
    """
    df = Counter(id for ids in texts for id in set(ids))
    N = len(texts)
    return {id: math.log(N / df.get(id, 1)) for id in tokenizer.backend.get_vocab().values()}


def mask(tokenizer: Tokenizer, texts: Ids | None) -> dict[int, float]:
    """[MASK] alone, as in PromptBERT; for a prompt that has one."""
    if "mask_token" not in tokenizer.special:
        raise InputError("tokens mask: the vocabulary has no [MASK]", "tokens")
    here = tokenizer.backend.token_to_id(tokenizer.special["mask_token"])
    return {id: float(id == here) for id in tokenizer.backend.get_vocab().values()}


# Of a tokenizer and the token ids of texts (None: no texts were given) the weights that are not 1.
TOKENS: dict[str, Callable[[Tokenizer, Ids | None], dict[int, float]]] = {
    "all": all_tokens,
    "words": words,
    "sentence": all_tokens,
    "content": content,
    "idf": idf,
    "mask": mask,
}
UNWEIGHTED = ("cls", "max", "lasttoken")  # poolings that look at one token, or one value
LEARNT = ("idf",)  # rows that cannot do without texts
OF_PLACES = ("sentence",)  # rows that leave out the prompt, whatever its words


def special_ids(tokenizer: Tokenizer) -> set[int]:
    return {tokenizer.backend.token_to_id(token) for token in tokenizer.special.values()}


def check_tokens(name: str | None, pooling: str | None = None) -> None:
    """Raises InputError if there is no such row, or the pooling does not weigh tokens; None is no name."""
    if name is not None and name not in TOKENS:
        known = f"{', '.join(TOKENS)}{did_you_mean(name, TOKENS)}"
        raise InputError(f"tokens {name!r}: choose one of {known}", "tokens")
    if name not in (None, "all") and all(part in UNWEIGHTED for part in (pooling or "mean").split("+")):
        raise InputError(
            f"tokens {name}: pooling {pooling} takes no weights, choose mean", "tokens", "pooling"
        )


def token_weights(
    name: str, prompt: Prompt, vocab_size: int, texts: Ids | None = None
) -> "TokenWeights | None":
    """A row of TOKENS for sentences in a prompt and a table of vocab_size words; None if all weigh the same.

    texts: token ids of those to learn from. Raises InputError if there is no such row, or it lacks something.
    """
    check_tokens(name)
    if name in LEARNT and not texts:
        raise InputError(f"tokens {name}: it is learnt from texts, and there are none", "tokens")
    weights = torch.ones(vocab_size)
    if name in OF_PLACES:
        return TokenWeights(weights, prompt.lead, prompt.tail) if prompt.lead or prompt.tail else None
    if name == "mask" and "mask_token" in prompt.tokenizer.special and not prompt.masks:
        raise InputError("tokens mask: the prompt has no [M], choose one such as T4", "tokens", "prompt")
    for id, weight in TOKENS[name](prompt.tokenizer, texts).items():
        weights[id] = weight
    return None if (weights == 1).all() else TokenWeights(weights)


class TokenWeights(nn.Module):
    """The weight of each token of the rows. table: (V,) of 0 or more, by id; lead, tail: how many tokens at
    the begin and at the end of each sentence weigh 0 whatever they are."""

    def __init__(self, table: Tensor, lead: int = 0, tail: int = 0):
        super().__init__()
        self.register_buffer("table", table, persistent=False)
        self.lead, self.tail = lead, tail

    def forward(self, rows: PackedBatch) -> Tensor:
        """-> (B, T) float32"""
        weights = self.table[rows.input_ids]
        if self.lead or self.tail:
            lengths = torch.bincount(rows.sentence_ids.flatten())[
                rows.sentence_ids
            ]  # of the sentence it is in
            position = rows.position_ids
            weights = weights * ((position >= self.lead) & (position < lengths - self.tail))
        return weights
