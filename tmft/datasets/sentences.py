"""Make the text for distillation: paragraphs become sentences, one per line, without duplicates."""

import re
from collections.abc import Iterable, Iterator

from tmft.datasets.distillation_data import deduplicate, normalize_text

# A sentence ends with . ! or ? before white space and a capital, an opening quote or a bracket. This is wrong
# after abbreviations such as Dr., and good enough for text that only has to look like sentences.
SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[\"“‘(]?[A-Z])")
SHORT_LINE = 120  # characters; a line that is not longer stays whole
MIN_LETTERS = 12  # letters and digits that a sentence has at least


def line_to_sentences(line: str, max_length: int) -> list[str]:
    """Return the sentences of a line and, if it is not longer than max_length characters, the line itself.

    A line of at most SHORT_LINE characters is not split.
    """
    if len(line) <= SHORT_LINE:
        return [line]
    sentences = SENTENCE_END.split(line)
    return [*sentences, line] if len(sentences) > 1 and len(line) <= max_length else sentences


def extract_sentences(
    lines: Iterable[str], min_length: int, max_length: int, excluded: Iterable[str] = ()
) -> Iterator[str]:
    """Yield the distinct sentences of a text.

    lines: sentences or paragraphs. min_length, max_length: characters; shorter and longer sentences are left
    out. excluded: sentences that are left out, such as those of test sets. Sentences with the same letters
    and digits count as equal.
    """
    sentences = (
        sentence.strip() for line in lines for sentence in line_to_sentences(line.strip(), max_length)
    )
    fitting = (
        sentence
        for sentence in sentences
        if min_length <= len(sentence) <= max_length and len(normalize_text(sentence)) >= MIN_LETTERS
    )
    yield from deduplicate(fitting, map(normalize_text, excluded))
