"""A model whose vocabulary is cut to the words that a text uses: in a small model most numbers are of words.

Its tokens of that text are the same. WordPiece takes the longest piece first, so a piece that is never used
can go; a unigram model takes the best of all ways to cut a word, and one less that is not the best changes
nothing. What a word of another text has lost is cut into shorter pieces, letters in the end.
"""

import json
from collections.abc import Iterable
from copy import deepcopy
from dataclasses import replace

import tokenizers
from torch import nn

from tmft.checkpoints.tokenizers import Tokenizer
from tmft.embedding.token_weights import TokenWeights, special_ids
from tmft.errors import InputError
from tmft.sentence_encoder import SentenceEncoder
from tmft.serving.encode_file import blocks_of
from tmft.serving.export import around


def prune_vocabulary(model: SentenceEncoder, lines: Iterable[str]) -> SentenceEncoder:
    """The same model with the pieces that the lines use, the special tokens and the letters of ASCII.

    Raises InputError if the tokenizer is of another kind, such as BPE, whose pieces are made of others.
    """
    kept = kept_ids(model, lines)
    encoder, tokenizer = deepcopy(model.encoder), cut_tokenizer(model.tokenizer, kept)
    table, new = encoder.embeddings.word, {old: number for number, old in enumerate(kept)}
    table.weight, table.num_embeddings = nn.Parameter(table.weight.detach()[kept].clone()), len(kept)
    named = {"pad_token_id", "decoder_start_token_id"} & vars(encoder.config).keys()
    ids = {name: new.get(getattr(encoder.config, name), 0) for name in named}
    encoder.config = replace(encoder.config, vocab_size=len(kept), **ids)
    if getattr(encoder.embeddings, "also", None):
        encoder.embeddings.also = [new[id] for id in encoder.embeddings.also]
    made = around(encoder, model, tokenizer, deepcopy(list(model.head_modules)))
    if model.token_weights is not None:
        made.token_weights = TokenWeights(model.token_weights.table[kept].clone(), model.token_weights.lead, model.token_weights.tail)
    return made


def kept_ids(model: SentenceEncoder, lines: Iterable[str]) -> list[int]:
    """Ids that stay, in order."""
    backend, said = model.tokenizer.backend, json.loads(model.tokenizer.backend.to_str())["model"]
    used = special_ids(model.tokenizer) | set(getattr(model.encoder.embeddings, "also", []))
    used |= {id for token, id in backend.get_vocab().items() if is_letter(token)}
    if said["type"] == "Unigram":  # what is no word at all costs a little more than the worst piece
        used |= {said["unk_id"], min(range(len(said["vocab"])), key=lambda id: said["vocab"][id][1])}
    read = False
    for block in blocks_of(lines):
        read = True
        for ids in model.tokenizer.ids_of(block, special=True):
            used.update(ids)
        used.update(id for ids in model.tokenize(block[:1]) for id in ids)  # with the prompt around it
    if not read:
        raise InputError("vocabulary: the text has no line", "vocabulary")
    return sorted(id for id in used if id < model.encoder.config.vocab_size)


def is_letter(token: str) -> bool:
    bare = token.removeprefix("##").removeprefix("▁")
    return len(bare) == 1 and bare.isascii()


def cut_tokenizer(tokenizer: Tokenizer, kept: list[int]) -> Tokenizer:
    """The tokenizer of these ids, numbered anew."""
    content = json.loads(tokenizer.backend.to_str())
    new, model = {old: number for number, old in enumerate(kept)}, content["model"]
    if model["type"] == "WordPiece":
        model["vocab"] = {token: new[id] for token, id in model["vocab"].items() if id in new}
    elif model["type"] == "Unigram":
        model["vocab"] = [entry for id, entry in enumerate(model["vocab"]) if id in new]
        model["unk_id"] = new[model["unk_id"]]
    else:
        raise InputError(f"vocabulary: a {model['type']} tokenizer cannot be cut", "vocabulary")
    added = content.get("added_tokens") or []
    content["added_tokens"] = [token | {"id": new[token["id"]]} for token in added if token["id"] in new]
    renumber(content.get("post_processor"), new)
    backend = tokenizers.Tokenizer.from_str(json.dumps(content, ensure_ascii=False))
    return Tokenizer(backend, tokenizer.special, tokenizer.max_length, tokenizer.bare, tokenizer.opens_as)


def renumber(processor: dict | None, new: dict[int, int]) -> None:
    """The ids in a post-processor, in place: those of a template, or those that BERT's has of its two."""
    for part in [processor or {}, *((processor or {}).get("processors") or [])]:
        for token in (part.get("special_tokens") or {}).values():
            token["ids"] = [new[id] for id in token["ids"]]
        for key in ("sep", "cls"):
            if key in part:
                part[key] = [part[key][0], new[part[key][1]]]
