"""Prompts: templates around a sentence that ask a masked language model what the sentence means.

In a template [X] stands for the sentence, [X.] for the sentence with a full stop added unless it ends in one
of . ? " ', and [M] for the tokenizer's [MASK].
Source: Jiang et al. 2022 (PromptBERT), arXiv:2201.04337, for T0; Stankevičius and Lukoševičius 2024,
arXiv:2408.08073, table 1, for the others. PromptBERT's code adds the full stop; its paper does not mention
it.
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
PLACEHOLDERS = ("[X.]", "[X]")


def parse_prompt(text: str) -> str:
    """Return the template for a name in PROMPTS; any other text is a template and is returned itself.

    Raises InputError unless the template contains exactly one [X] or [X.].
    """
    template = PROMPTS.get(text, text)
    if sum(template.count(placeholder) for placeholder in PLACEHOLDERS) != 1:
        known = f"one of {', '.join(PROMPTS)}, or a text with one [X] where the sentence goes"
        raise InputError(f"prompt {text!r}: choose {known}", "prompt")
    return template


class Prompt:
    """Put sentences into a template and tokenize them.

    template: a text with [X] or [X.] where the sentence goes. A text without them is a prefix, as in
    sentence-transformers; '' leaves sentences as they are.
    tokenizer: the tokenizer of the model. Raises InputError if the template has [M] and the vocabulary has no
    [MASK].

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

        # Count the tokens of the prefix and of the suffix next to a word that is a single token, if there is
        # one: how the prefix is split into tokens may depend on whether a word follows it.
        first, last = tokenizer.num_special_tokens
        words = [word for word in ("a", "I", "X") if self.num_tokens(word) == first + 1 + last] or ["a"]
        texts = (words[0], self.prefix + words[0], words[0] + self.suffix)
        word_only, with_prefix, with_suffix = map(self.num_tokens, texts)
        self.prefix_length = with_prefix - word_only + first
        self.suffix_length = with_suffix - word_only + last

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
        never truncated. Raises InputError if it has so many tokens that no room is left for a sentence.
        """
        num_prompt_tokens = self.prefix_length + self.suffix_length
        if num_prompt_tokens >= max_length:
            size = f"{num_prompt_tokens} of {max_length} tokens"
            raise InputError(f"prompt {self.template!r} takes {size}: shorten it", "prompt")
        return self.tokenizer(
            [self.format(sentence) for sentence in sentences], max_length, self.suffix_length
        )
