"""Prompts: named texts that a model puts around a sentence, such as "query: " before a query.

A prompt is a prefix, as in sentence-transformers, or a template that has the sentence in it: [X] stands for
the sentence, [X.] for the sentence with a full stop added unless it ends in one of . ? " ', and [M] for the
tokenizer's [MASK]. The templates in PROMPTS ask a masked language model what the sentence means.
Source of the templates: Stankevičius and Lukoševičius 2024, arXiv:2408.08073, table 1, word for word, with
straight quotation marks; T0 is that of Jiang et al. 2022 (PromptBERT), arXiv:2201.04337, whose code adds a
full stop to the sentence: 'This sentence: "[X.]" means [M].'
"""

import logging

from tmft.errors import InputError, check_choice, short_repr
from tmft.tokenizer import Tokenizer

PROMPTS = {
    "T0": 'This sentence: "[X]" means [M].',
    "T1": 'This sentence: "[X]" means [M][M].',
    "T2": 'This sentence: "[X]" means "[M][M]" and is about [M].',
    "T3": 'This sentence from the paraphrase dictionary: "[X]" means "[M]", which is about [M].',
    "T4": 'This sentence from the dictionary: "[X]" means "[M]" and is about [M], '
    "which is a synonym for [M].",
}
NO_PROMPTS = {"query": "", "document": ""}  # the prompts that every model of sentence-transformers has
PLACEHOLDERS = ("[X.]", "[X]")
# Names of the prompts for queries and for documents; the first one that a model has is used.
QUERY_PROMPT_NAMES = ("query",)
DOCUMENT_PROMPT_NAMES = ("document", "passage", "corpus")

log: logging.Logger = logging.getLogger("tmft")


def choose_prompt(
    prompts: dict[str, str],
    default_prompt_name: str | None,
    prompt_name: str | None = None,
    prompt: str | None = None,
    parameter: str = "prompt_name",
) -> str:
    """Return the text of the prompt that one call uses: `prompt`, else prompt_name, else the default prompt.

    prompt_name is ignored, with a warning, if a prompt is given, too. Returns '' for no prompt.
    """
    if prompt is not None:
        if prompt_name is not None:
            log.warning("prompt_name %r is ignored, because a prompt is given, too", prompt_name)
        text = prompt
    elif prompt_name is not None:
        check_choice(parameter, prompt_name, prompts)
        text = prompts[prompt_name]
    elif default_prompt_name is None:
        return ""
    else:
        check_choice("default_prompt_name", default_prompt_name, prompts)
        text = prompts[default_prompt_name]
    if not isinstance(text, str):
        raise InputError(f"prompt {short_repr(text)}: give a text", "prompt")
    return text


def first_prompt_name(prompts: dict[str, str], candidates: tuple[str, ...]) -> str | None:
    """Return the first candidate that is a key of `prompts`; None if none is."""
    return next((name for name in candidates if name in prompts), None)


def parse_prompt(text: str, parameter: str = "prompt") -> str:
    """Return the template for a name in PROMPTS; any other text is returned unchanged, as a template."""
    template = PROMPTS.get(text, text)
    if sum(template.count(placeholder) for placeholder in PLACEHOLDERS) != 1:
        known = f"one of {', '.join(PROMPTS)}, or a text with one [X] where the sentence goes"
        raise InputError(f"{parameter} {text!r}: choose {known}", parameter)
    return template


class Prompt:
    """Put sentences into a template and tokenize them.

    template: a text with [X] or [X.] where the sentence goes. A text without them is a prefix, as in
    sentence-transformers; '' leaves sentences as they are.

    The attributes prefix_length and suffix_length are the numbers of tokens before and after the sentence,
    [CLS] and [SEP] included; has_mask says whether there is a [MASK] among them.
    """

    def __init__(self, template: str, tokenizer: Tokenizer):
        self.template, self.tokenizer = template, tokenizer
        placeholder = next((name for name in PLACEHOLDERS if name in template), "")
        self.prefix, _, self.suffix = template.partition(placeholder) if placeholder else (template, "", "")
        self.adds_full_stop, mask = placeholder == "[X.]", tokenizer.special_tokens.get("mask_token")
        if "[M]" in template and mask is None:
            raise InputError(
                f"prompt {template!r}: the vocabulary has no [MASK]: choose a prompt without [M]", "prompt"
            )
        self.prefix, self.suffix = (text.replace("[M]", mask or "") for text in (self.prefix, self.suffix))
        self.has_mask = mask is not None and mask in self.prefix + self.suffix

        self.prefix_length, self.suffix_length = first, last = tokenizer.num_special_tokens
        if self.prefix or self.suffix:
            # Count the tokens of the prefix and of the suffix next to a word that is a single token, if there
            # is one: how the prefix is split into tokens may depend on whether a word follows it.
            words = [word for word in ("a", "I", "X") if self.num_tokens(word) == first + 1 + last] or ["a"]
            texts = (words[0], self.prefix + words[0], words[0] + self.suffix)
            word_only, with_prefix, with_suffix = map(self.num_tokens, texts)
            self.prefix_length += with_prefix - word_only
            self.suffix_length += with_suffix - word_only

    def num_tokens(self, text: str) -> int:
        """Return the number of tokens of a text, special tokens included."""
        return len(self.tokenizer([text], 1 << 30)[0][0])

    def format(self, sentence: str) -> str:
        """Return the template with a sentence in it, and with the tokenizer's [MASK] for each [M]."""
        if self.adds_full_stop and sentence and sentence[-1] not in (".", "?", '"', "'"):
            sentence += "."
        return self.prefix + sentence + self.suffix

    def __call__(self, sentences: list[str], max_length: int) -> tuple[list[list[int]], int]:
        """Return the token ids of each sentence in the template, and how many sentences were truncated.

        Each sentence has at most max_length token ids, those of the template included. The template itself is
        never truncated.
        """
        num_prompt_tokens = self.prefix_length + self.suffix_length
        if num_prompt_tokens >= max_length:
            size = f"{num_prompt_tokens} of {max_length} tokens"
            raise InputError(f"prompt {self.template!r} takes {size}: shorten it", "prompt")
        return self.tokenizer(list(map(self.format, sentences)), max_length, self.suffix_length)
