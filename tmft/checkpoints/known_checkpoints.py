"""KNOWN_CHECKPOINTS: hub ids of checkpoints that tmft knows by name; the checkpoints of the paper come first.

They are used to suggest the hub id that a user probably meant, and for the language and the license in model
cards.
"""

# hub id -> (language, license) according to its page on the hub; '' if the page does not state it
KNOWN_CHECKPOINTS: dict[str, tuple[str, str]] = {
    "bert-base-cased": ("en", "apache-2.0"),
    "bert-large-cased": ("en", "apache-2.0"),
    "google-bert/bert-base-cased": ("en", "apache-2.0"),
    "google-bert/bert-base-uncased": ("en", "apache-2.0"),
    "google/bert_uncased_L-2_H-128_A-2": ("en", "apache-2.0"),
    "google/bert_uncased_L-4_H-256_A-4": ("en", "apache-2.0"),
    "google/bert_uncased_L-4_H-512_A-8": ("en", "apache-2.0"),
    "google/bert_uncased_L-8_H-512_A-8": ("en", "apache-2.0"),
    "google/electra-small-discriminator": ("en", "apache-2.0"),
    "google/electra-small-generator": ("en", "apache-2.0"),
    "google/electra-base-discriminator": ("en", "apache-2.0"),
    "google/electra-base-generator": ("en", "apache-2.0"),
    "google/electra-large-discriminator": ("en", "apache-2.0"),
    "google/electra-large-generator": ("en", "apache-2.0"),
    "microsoft/deberta-v3-small": ("en", "mit"),
    "microsoft/deberta-v3-base": ("en", "mit"),
    "microsoft/deberta-v3-large": ("en", "mit"),
    "klue/bert-base": ("ko", "cc-by-sa-4.0"),
    "monologg/koelectra-base-v3-discriminator": ("ko", "apache-2.0"),
    "monologg/koelectra-base-v3-generator": ("ko", "apache-2.0"),
    "google-bert/bert-base-german-cased": ("de", "mit"),
    "deepset/gelectra-base": ("de", "mit"),
    "deepset/gelectra-base-generator": ("de", "mit"),
    "dccuchile/bert-base-spanish-wwm-cased": ("es", ""),
    "mrm8488/electricidad-base-discriminator": ("es", ""),
    "mrm8488/electricidad-base-generator": ("es", ""),
    "sentence-transformers/all-MiniLM-L6-v2": ("en", "apache-2.0"),
}
