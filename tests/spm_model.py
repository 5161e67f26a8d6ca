"""An spm.model for tests: trained on made-up sentences in five scripts, with DeBERTa's special pieces."""

import io
import random

import pytest

SUBJECTS = """the baker, an old sailor, my neighbour, the teacher, der Bäcker, eine alte Lehrerin,
el panadero, la niña, un señor mayor, 빵집 주인이, 할머니가, 우리 이웃은, 面包师, 老师, 我的邻居"""
VERBS = """mends, carries, paints, is looking for, repariert, trägt, sucht, bemalt, arregla, lleva,
está buscando, 고칩니다, 찾고 있어요, 그립니다, 修理, 画, 在找"""
OBJECTS = """a wooden boat., three umbrellas!, the garden gate?, 12 candles; 3.5 metres long, zwei Gläser,
ein grünes Fahrrad., die Brücke über den Fluß, una guitarra vieja., ¿el último tren?, 낡은 의자를.,
편지 두 통, 一把雨伞。, 那座桥, 🎈 🎈"""


def made_up_sentences(count: int, seed: int) -> list[str]:
    choose = random.Random(seed).choice
    parts = [text.replace("\n", " ").split(", ") for text in (SUBJECTS, VERBS, OBJECTS)]
    return [" ".join(choose(part) for part in parts) for _ in range(count)]


def train_spm(**changes) -> bytes:
    """An spm.model with the special pieces of DeBERTa-v3's."""
    sentencepiece = pytest.importorskip("sentencepiece")
    settings = {
        "vocab_size": 520,
        "hard_vocab_limit": False,
        "character_coverage": 1.0,
        "normalization_rule_name": "nmt_nfkc",
        "byte_fallback": True,
        "user_defined_symbols": ["<url>"],
        "minloglevel": 2,
    }
    for number, piece in enumerate(("pad", "bos", "eos", "unk")):
        settings |= {f"{piece}_id": number, f"{piece}_piece": ["[PAD]", "[CLS]", "[SEP]", "[UNK]"][number]}
    file = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(made_up_sentences(400, seed=0)), model_writer=file, **(settings | changes)
    )
    return file.getvalue()
