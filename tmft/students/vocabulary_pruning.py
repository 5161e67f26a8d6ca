"""Remove the tokens from a model's vocabulary that do not occur in a given text.

This makes a small model much smaller, because most of its weights are word embeddings. The given text is
tokenized as before: WordPiece takes the longest token that fits, so a token that is never used can be
removed; a unigram model takes the most probable of all segmentations, and removing tokens that only other
segmentations use changes nothing. In other texts, a word whose tokens were removed is split into shorter
tokens, in the worst case into letters.
"""

import json
from collections.abc import Iterable
from copy import deepcopy
from dataclasses import replace
from typing import Any

import tokenizers
import torch
from torch import Tensor, nn

from tmft.embedding.prompts import Prompt
from tmft.embedding.token_weights import TokenWeights, special_ids
from tmft.errors import InputError, check_count
from tmft.sentence_encoder import SentenceEncoder
from tmft.serving.encode_file import batched
from tmft.tokenizer import Tokenizer, check_is_list, check_sentences


def prune_vocabulary(
    model: SentenceEncoder, lines: Iterable[str], vocab_size: int | None = None
) -> SentenceEncoder:
    """Return a copy of a model that has only the tokens of some text, special tokens and ASCII characters.

    lines: the text. vocab_size: keep only so many tokens, the most frequent ones of the text; None keeps all
    that occur. Raises InputError if the text is empty, if vocab_size is too small or larger than the
    vocabulary, or if the tokenizer is not WordPiece or unigram. (A BPE tokenizer merges tokens into longer
    ones, so none of them can be removed.)
    """
    kept = tokens_to_keep(model, token_counts(model, lines), vocab_size)
    tokenizer = prune_tokenizer(model.tokenizer, kept)
    pruned = deepcopy(model, {id(model.tokenizer): tokenizer}).eval()  # a copy that has the new tokenizer
    encoder = pruned.encoder
    embedding, new_ids = encoder.embeddings.word, {old: new for new, old in enumerate(kept)}
    embedding.weight = nn.Parameter(embedding.weight.detach()[kept].clone())  # (len(kept), D)
    embedding.num_embeddings = len(kept)
    names = {"pad_token_id", "decoder_start_token_id"} & vars(encoder.config).keys()
    old_ids = {name: getattr(encoder.config, name) for name in names}  # None: the model has no such token
    token_ids: dict[str, Any] = {
        name: id if id is None else new_ids.get(id, 0) for name, id in old_ids.items()
    }
    encoder.config = replace(encoder.config, vocab_size=len(kept), **token_ids)
    if encoder.embeddings.extra_ids:
        encoder.embeddings.extra_ids = [new_ids[id] for id in encoder.embeddings.extra_ids]
    if (weights := model.token_weights) is not None:
        table = weights.table[kept].clone()
        pruned.token_weights = TokenWeights(table, weights.prefix_length, weights.suffix_length)
    return pruned


def token_counts(model: SentenceEncoder, lines: Iterable[str]) -> Tensor:
    """Return how often each token occurs in a text, (number of tokens,) float64, special tokens included."""
    counts = torch.zeros(len(model.tokenizer.vocabulary), dtype=torch.float64)
    is_empty = True
    check_is_list(lines)
    for block in map(check_sentences, batched(lines)):
        if is_empty:  # the first line in every prompt of the model
            block = [
                *block,
                *(Prompt(text, model.tokenizer).format(block[0]) for text in model.prompts.values()),
            ]
        is_empty = False
        token_ids = model.tokenizer.encode_batch(block, add_special_tokens=True)
        ids = torch.tensor([id for ids in token_ids for id in ids], dtype=torch.long)  # perhaps none
        counts += torch.bincount(ids, minlength=len(counts))
    if is_empty:
        raise InputError(
            "prune_vocabulary: the text is empty: give a text with a sentence per line", "prune_vocabulary"
        )
    return counts


def tokens_to_keep(model: SentenceEncoder, counts: Tensor, vocab_size: int | None = None) -> list[int]:
    """Return the ids of the tokens to keep, in ascending order.

    vocab_size: how many tokens to keep; None keeps all that occur. Those without which no text could be read
    are always kept: special tokens, ASCII characters and the like.
    """
    always = find_required_ids(model)
    order = counts[: model.encoder.config.vocab_size].argsort(descending=True, stable=True).tolist()
    by_frequency = [id for id in order if id not in always]
    if vocab_size is None:
        num_others = sum(int(counts[id]) > 0 for id in by_frequency)
    else:
        check_count("vocab_size", vocab_size, len(always), min(len(counts), model.encoder.config.vocab_size))
        num_others = vocab_size - len(always)
    return sorted(always.union(by_frequency[:num_others]))


def find_required_ids(model: SentenceEncoder) -> set[int]:
    """Return the ids of the tokens without which a tokenizer could not read every text."""
    backend, config = model.tokenizer.backend, json.loads(model.tokenizer.backend.to_str())["model"]
    kept = special_ids(model.tokenizer) | set(model.encoder.embeddings.extra_ids)
    # RoBERTa counts positions from the id of the padding token, which may therefore not change
    kept |= set(range(model.encoder.config.position_offset))
    for token, id in backend.get_vocab().items():
        bare = token.removeprefix("##").removeprefix("▁")
        if len(bare) == 1 and bare.isascii():  # such as a, ##a or ▁a
            kept.add(id)
    # the score of an unknown token is derived from the lowest score of all tokens
    if config["type"] == "Unigram":
        kept |= {config["unk_id"], min(range(len(config["vocab"])), key=lambda id: config["vocab"][id][1])}
    return {id for id in kept if id < model.encoder.config.vocab_size}


def prune_tokenizer(tokenizer: Tokenizer, kept: list[int]) -> Tokenizer:
    """Return a new tokenizer with only some of the tokens; the given tokenizer is not changed.

    kept: the ids of the tokens to keep, ascending, with those of all special tokens and the unknown token.
        Token kept[i] gets the id i.
    A word that needed a removed token is split into shorter kept tokens, or becomes the unknown token if
    there are none.
    """
    content = json.loads(tokenizer.backend.to_str())
    new_ids, model = {old: new for new, old in enumerate(kept)}, content["model"]
    if model["type"] == "WordPiece":
        model["vocab"] = {token: new_ids[id] for token, id in model["vocab"].items() if id in new_ids}
    elif model["type"] == "Unigram":
        model["vocab"] = [entry for id, entry in enumerate(model["vocab"]) if id in new_ids]
        model["unk_id"] = new_ids[model["unk_id"]]
    else:
        problem = f"prune_vocabulary: a {model['type']} tokenizer cannot be pruned"
        raise InputError(f"{problem}: export the whole vocabulary", "prune_vocabulary")
    added = content.get("added_tokens") or []
    content["added_tokens"] = [
        token | {"id": new_ids[token["id"]]} for token in added if token["id"] in new_ids
    ]
    remap_ids(content.get("post_processor"), new_ids)
    backend = tokenizers.Tokenizer.from_str(json.dumps(content, ensure_ascii=False))
    return Tokenizer(
        backend,
        tokenizer.special_tokens,
        tokenizer.max_length,
        tokenizer.add_special_tokens,
        tokenizer.tokenizer_class,
    )


def remap_ids(processor: dict[str, Any] | None, new_ids: dict[int, int]) -> None:
    """Replace the token ids in the post-processor of a tokenizer, in place.

    processor: the "post_processor" of tokenizer.json; its ids are those of the special tokens of a template,
    or those of BERT's [CLS] and [SEP].
    """
    for part in [processor or {}, *((processor or {}).get("processors") or [])]:
        for token in (part.get("special_tokens") or {}).values():
            token["ids"] = [new_ids[id] for id in token["ids"]]
        for key in ("sep", "cls"):
            if key in part:
                part[key] = [part[key][0], new_ids[part[key][1]]]
