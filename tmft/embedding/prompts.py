"""Prompts: a sentence in a template, which asks a masked language model what the sentence means.

[X] stands for the sentence, [X.] for the sentence with a full stop if it ends in none of . ? " ', and [M] for
the tokenizer's [MASK]. Source: Jiang et al. 2022 (PromptBERT), arXiv:2201.04337, for T0; Stankevičius and
Lukoševičius 2024, table 1, for the others. PromptBERT's code adds the full stop, its paper does not say so.
"""

from tmft.checkpoints.tokenizers import Tokenizer
from tmft.errors import InputError

PROMPTS = {
    "T0": 'This sentence: "[X.]" means [M].',
    "T1": 'This sentence: "[X.]" means [M][M].',
    "T2": 'This sentence: "[X.]" means "[M][M]" and is about [M].',
    "T3": 'This sentence from the paraphrase dictionary: "[X.]" means "[M]", which is about [M].',
    "T4": 'This sentence from the dictionary: "[X.]" means "[M]" and is about [M], '
    "which is a synonym for [M].",
}
PLACES = ("[X.]", "[X]")


def parse_prompt(text: str) -> str:
    """A row of PROMPTS or a template of one's own -> the template. InputError if it has no single place."""
    template = PROMPTS.get(text, text)
    if sum(template.count(place) for place in PLACES) != 1:
        known = f"one of {', '.join(PROMPTS)}, or a text with one [X] where the sentence goes"
        raise InputError(f"prompt {text!r}: choose {known}", "prompt")
    return template


class Prompt:
    """A template for one tokenizer; a text without a place, as in sentence-transformers, is put before.

    lead, tail: how many tokens stand before and after those of the sentence, [CLS] and [SEP] included; masks:
    whether there is a [MASK] among them.
    """

    def __init__(self, template: str, tokenizer: Tokenizer):
        self.template, self.tokenizer = template, tokenizer
        place = next((place for place in PLACES if place in template), "")
        self.before, _, self.after = template.partition(place) if place else (template, "", "")
        self.full_stop, mask = place == "[X.]", tokenizer.special.get("mask_token")
        if "[M]" in template and mask is None:
            raise InputError(f"prompt {template!r}: the vocabulary has no [MASK]", "prompt")
        self.before, self.after = (part.replace("[M]", mask or "") for part in (self.before, self.after))
        self.masks = mask is not None and mask in self.before + self.after
        first, last = tokenizer.special_ends
        words = [word for word in ("a", "I", "X") if self.length(word) == first + 1 + last] or ["a"]
        texts = (
            words[0],
            self.before + words[0],
            words[0] + self.after,
        )  # a word of one token, if there is one
        alone, led, followed = map(self.length, texts)
        self.lead, self.tail = led - alone + first, followed - alone + last

    def length(self, text: str) -> int:
        return len(self.tokenizer([text], 1 << 30)[0][0])

    def fill(self, sentence: str) -> str:
        if self.full_stop and sentence and sentence[-1] not in (".", "?", '"', "'"):
            sentence += "."
        return self.before + sentence + self.after

    def __call__(self, sentences: list[str], max_length: int) -> tuple[list[list[int]], int]:
        """-> token ids, at most max_length, and how many sentences were cut. The template never is."""
        if self.lead + self.tail >= max_length:
            size = f"{self.lead + self.tail} of {max_length} tokens"
            raise InputError(f"prompt {self.template!r}: it takes {size}: shorten it", "prompt")
        return self.tokenizer([self.fill(sentence) for sentence in sentences], max_length, self.tail)
