"""Every kind of checkpoint that the paper used, as its repository on the hub, small and with random weights.

CHECKPOINTS says which, LAYOUTS what differs between repositories: keys of config.json, names and files of the
weights, tokenizer files. Sizes are a sixteenth of the real ones, so that what is equal or unequal stays so;
numbers of heads are real. Each is loaded, truncated, compared with transformers at every layer, and saved.
"""

import json
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from conftest import assert_same_embeddings
from safetensors.torch import save_file
from spm_model import train_spm

from tmft.checkpoints.load import load_encoder_with_report
from tmft.sentence_encoder import SentenceEncoder

pytestmark = pytest.mark.slow

BIN, SAFETENSORS = "pytorch_model.bin", "model.safetensors"
GOOGLE = ["[PAD]", "[unused0]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
KOREAN = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
SPANISH = [
    "[MASK]",
    "[PAD]",
    "[EOS]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
]  # padding has id 1, whatever the config says
SENTENCES = ["Ein Mädchen spielt GITARRE, São Paulo.", "El niño corrió.", "한국어 문장, 中文!", "a"]


@dataclass
class Layout:
    """What a repository holds. settings: tokenizer_config.json; keys: config.json without the sizes."""

    files: tuple[str, ...] = (BIN,)
    prefix: bool = True  # "bert.", "electra." or "deberta." before the names of the encoder
    gamma_and_beta: bool = False  # the old names of LayerNorm's weights
    dtype: torch.dtype = torch.float32
    specials: list[str] = field(default_factory=lambda: GOOGLE)  # the first lines of vocab.txt
    tokenizer_json: bool = False
    settings: dict | None = None
    keys: dict = field(default_factory=lambda: COMMON | {"pad_token_id": 0})
    max_length: int = 512


DROPOUT = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}
BARE = DROPOUT | {"hidden_act": "gelu", "initializer_range": 0.02, "type_vocab_size": 2}  # nor a model_type
COMMON = BARE | {"layer_norm_eps": 1e-12}
DEBERTA_V3 = COMMON | {
    "layer_norm_eps": 1e-7,
    "type_vocab_size": 0,
    "pad_token_id": 0,
    "max_relative_positions": -1,
    "position_buckets": 256,
    "norm_rel_ebd": "layer_norm",
    "share_att_key": True,
    "pos_att_type": "p2c|c2p",
    "relative_attention": True,
    "position_biased_input": False,
    "pooler_dropout": 0,
    "pooler_hidden_act": "gelu",
}
CASED, UNCASED = ({"do_lower_case": lower, "model_max_length": 512} for lower in (False, True))
NO_LIMIT = {"do_lower_case": False, "max_len": 512, "init_inputs": [], "strip_accents": False}
# fmt: off
LAYOUTS = {
    "bert cased": Layout((SAFETENSORS, BIN), gamma_and_beta=True, tokenizer_json=True, settings=CASED),
    "bert small": Layout(keys=BARE),
    "electra":    Layout(tokenizer_json=True, settings=UNCASED, keys=COMMON),
    "klue":       Layout((BIN, SAFETENSORS), specials=KOREAN, tokenizer_json=True,
                         settings=CASED | {"strip_accents": None, "tokenize_chinese_chars": True}),
    "koelectra":  Layout(specials=KOREAN, settings={"do_lower_case": False}),
    "gelectra":   Layout((BIN, SAFETENSORS), settings=NO_LIMIT, keys=COMMON),
    "german":     Layout((SAFETENSORS, BIN), tokenizer_json=True, settings=CASED),
    "spanish":    Layout(specials=SPANISH, settings={"do_lower_case": True, "strip_accents": None}),
    "beto":       Layout(specials=SPANISH, settings={"do_lower_case": False, "strip_accents": False},
                         keys=COMMON | {"pad_token_id": 1, "output_past": True}),
    "minilm":     Layout((SAFETENSORS,), prefix=False, tokenizer_json=True, settings=UNCASED, max_length=256),
    "deberta":    Layout(dtype=torch.float16, settings={"do_lower_case": False, "vocab_type": "spm"},
                         keys=DEBERTA_V3),
}
# Hub id -> class in transformers, embedding_size, hidden_size, layers, heads of attention, layout: one of
# each kind. The others of a layout differ in their sizes alone.
CHECKPOINTS = {
    "bert-large-cased":                         ("BertForPreTraining",      1024, 1024, 24, 16, "bert cased"),
    "google/bert_uncased_L-2_H-128_A-2":        ("BertForPreTraining",       128,  128,  2,  2, "bert small"),
    "google/electra-small-discriminator":       ("ElectraForPreTraining",    128,  256, 12,  4, "electra"),
    "google/electra-base-generator":            ("ElectraForMaskedLM",       768,  256, 12,  4, "electra"),
    "klue/bert-base":                           ("BertForPreTraining",       768,  768, 12, 12, "klue"),
    "monologg/koelectra-base-v3-discriminator": ("ElectraForPreTraining",    768,  768, 12, 12, "koelectra"),
    "deepset/gelectra-base-generator":          ("ElectraForMaskedLM",       768,  256, 12,  4, "gelectra"),
    "google-bert/bert-base-german-cased":       ("BertForPreTraining",       768,  768, 12, 12, "german"),
    "mrm8488/electricidad-base-discriminator":  ("ElectraForPreTraining",    768,  768, 12, 12, "spanish"),
    "dccuchile/bert-base-spanish-wwm-cased":    ("BertForPreTraining",       768,  768, 12, 12, "beto"),
    "sentence-transformers/all-MiniLM-L6-v2":   ("BertModel",                384,  384,  6, 12, "minilm"),
    "microsoft/deberta-v3-base":                ("DebertaV2ForMaskedLM",     768,  768, 12, 12, "deberta"),
}
# fmt: on
HEADS = {
    "BertForPreTraining": {"cls.predictions", "cls.seq_relationship", "pooler"},
    "BertModel": {"pooler"},
    "ElectraForPreTraining": {"discriminator_predictions"},
    "ElectraForMaskedLM": {"generator_predictions", "generator_lm_head"},
    "DebertaV2ForMaskedLM": {"mask_predictions", "lm_predictions", "embeddings.position_embeddings"},
}


def write_tokenizer(folder, layout: Layout) -> None:
    if layout.settings is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps(layout.settings))
    if layout.settings and layout.settings.get("vocab_type") == "spm":
        (folder / "spm.model").write_bytes(train_spm())
        return
    letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZäßáéíóúñãÉÑ한국어문장中文"
    words = layout.specials + list(letters) + [f"##{letter}" for letter in letters] + list(".,!?") + ["##ein"]
    (folder / "vocab.txt").write_text("\n".join(words) + "\n", encoding="utf-8")
    if layout.tokenizer_json:
        from transformers import BertTokenizer

        lower = layout.settings["do_lower_case"]
        backend = BertTokenizer(str(folder / "vocab.txt"), do_lower_case=lower).backend_tokenizer
        backend.save(str(folder / "tokenizer.json"))


def write_model(folder, layout: Layout, class_name: str, E: int, H: int, L: int, heads: int) -> None:
    """config.json and the weights of a model with heads, under the names that the hub's files use."""
    import transformers

    family = class_name.partition("For")[0].removesuffix("Model").lower().removesuffix("v2")
    keys = {"model_type": "deberta-v2" if family == "deberta" else family} if layout.keys is not BARE else {}
    keys |= {
        "vocab_size": 600,
        "hidden_size": H // 16,
        "intermediate_size": H // 4,
        "num_attention_heads": heads,
    }
    keys |= {"num_hidden_layers": min(L, 4), "max_position_embeddings": 512} | layout.keys
    keys |= {"architectures": [class_name], "transformers_version": "4.0.0"} if "model_type" in keys else {}
    if family == "electra":
        keys |= {"embedding_size": E // 16, "summary_type": "first", "summary_use_proj": True}
    if class_name == "ElectraForMaskedLM":
        keys["generator_size"] = "0.33333"
    (folder / "config.json").write_text(json.dumps(keys))

    torch.manual_seed(0)
    model_class = getattr(transformers, class_name)
    model = model_class(model_class.config_class(**keys))
    for name, weight in model.named_parameters():
        torch.nn.init.normal_(weight, mean=float("norm.weight" in name.lower()), std=0.2)
    prefix = f"{family}." if layout.prefix else ""
    weights = {name: weight.clone() for name, weight in model.state_dict().items()}
    if (
        class_name == "DebertaV2ForMaskedLM"
    ):  # the heads of version 3's own files, and a table that is not used
        weights = {name: weight for name, weight in weights.items() if name.startswith(prefix)}
        weights |= {
            "mask_predictions.dense.weight": torch.zeros(2, 2),
            "lm_predictions.lm_head.bias": torch.zeros(2),
        }
        weights["deberta.embeddings.position_embeddings.weight"] = torch.zeros(512, H // 16)
    else:
        weights[f"{prefix}embeddings.position_ids"] = torch.arange(512)[None]
    if layout.gamma_and_beta:
        for new, old in (("LayerNorm.weight", "LayerNorm.gamma"), ("LayerNorm.bias", "LayerNorm.beta")):
            weights = {name.replace(new, old): weight for name, weight in weights.items()}
    weights = {
        name: weight.to(layout.dtype) if weight.is_floating_point() else weight
        for name, weight in weights.items()
    }
    if BIN in layout.files:
        torch.save(weights, folder / BIN)
    if SAFETENSORS in layout.files:
        save_file(weights, folder / SAFETENSORS, metadata={"format": "pt"})


def write_sentence_files(folder, hidden_size: int, max_length: int) -> None:
    """As in the repositories of sentence-transformers; the last module makes embeddings of unit length."""
    kinds = {"": "Transformer", "1_Pooling": "Pooling", "2_Normalize": "Normalize"}
    modules = [
        {"idx": number, "name": str(number), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for number, (path, kind) in enumerate(kinds.items())
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    pooling = {"word_embedding_dimension": hidden_size, "pooling_mode_mean_tokens": True}
    (folder / "1_Pooling/config.json").write_text(json.dumps(pooling))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": max_length}))


def transformers_tokenizer(folder):
    """AutoTokenizer needs a model_type, which the small BERTs do not have."""
    from transformers import AutoTokenizer, BertTokenizer

    return AutoTokenizer if "model_type" in (folder / "config.json").read_text() else BertTokenizer


def transformers_hidden_states(folder, class_name: str, token_ids: list[list[int]]) -> list:
    """[s][l]: hidden state l of sentence s alone, (T, D), from transformers' bare encoder in float32."""
    import transformers

    bare = getattr(transformers, class_name.partition("For")[0].removesuffix("Model") + "Model")
    model = bare.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.no_grad():
        states = [
            model(torch.tensor([ids]), attention_mask=torch.ones(1, len(ids)), output_hidden_states=True)
            for ids in token_ids
        ]
    return [[hidden[0] for hidden in output.hidden_states] for output in states]


@pytest.mark.parametrize("hub_id", CHECKPOINTS)
def test_a_repository_is_the_same_model_in_transformers_also_truncated_and_saved(hub_id, tmp_path):
    from transformers import AutoModel, AutoTokenizer

    class_name, *sizes, layout = CHECKPOINTS[hub_id]
    layout = LAYOUTS[layout]
    write_tokenizer(tmp_path, layout)
    write_model(tmp_path, layout, class_name, *sizes)
    if class_name == "BertModel":
        write_sentence_files(tmp_path, sizes[1] // 16, layout.max_length)
    model = SentenceEncoder.from_pretrained(tmp_path, pooling="mean")  # without the Normalize of MiniLM's
    assert model.max_length == layout.max_length
    token_ids = model.tokenize(SENTENCES)
    assert token_ids == transformers_tokenizer(tmp_path).from_pretrained(tmp_path)(SENTENCES)["input_ids"]
    assert len(set(map(tuple, token_ids))) == len(SENTENCES) and max(map(len, token_ids)) > 20

    expected = transformers_hidden_states(tmp_path, class_name, token_ids)
    shorter, report = load_encoder_with_report(tmp_path, layer=len(model.encoder.layers) - 1)
    assert set(report.ignored_heads) == HEADS[class_name] and report.truncated > 0
    assert len(expected[0]) == len(model.encoder.layers) + 1
    for encoder in (model.encoder, shorter):
        assert_equal_states(encoder, model.tokenizer.pad_id, token_ids, expected)

    first = SentenceEncoder.from_pretrained(tmp_path, layer=1, pooling="mean")
    first.save_pretrained(tmp_path / "saved")
    again, embeddings = SentenceEncoder.from_pretrained(tmp_path / "saved"), first.encode(SENTENCES)
    np.testing.assert_array_equal(again.encode(SENTENCES), embeddings)
    assert again.max_length == layout.max_length
    bare = AutoModel.from_pretrained(tmp_path / "saved", attn_implementation="eager").eval()
    batch = AutoTokenizer.from_pretrained(tmp_path / "saved")(SENTENCES, padding=True, return_tensors="pt")
    with torch.no_grad():
        hidden, mask = bare(**batch).last_hidden_state, batch["attention_mask"][..., None]
    for theirs in ((hidden * mask).sum(1) / mask.sum(1), torch.stack([h[1].mean(0) for h in expected])):
        assert_same_embeddings(embeddings, theirs.numpy(), tolerance=1e-5)


def assert_equal_states(encoder, pad_id: int, token_ids: list[list[int]], expected: list) -> None:
    """Those of the layers that the encoder has."""
    T = max(map(len, token_ids))
    mask = torch.tensor([[1] * len(ids) + [0] * (T - len(ids)) for ids in token_ids])
    ids = torch.tensor([ids + [pad_id] * (T - len(ids)) for ids in token_ids])
    with torch.no_grad():
        states = encoder.hidden_states(ids, mask)
    assert len(states) == len(encoder.layers) + 1
    for s, sentence in enumerate(expected):
        for ours, theirs in zip(states, sentence[: len(states)], strict=True):
            atol = 1e-5 * max(1.0, theirs.abs().max().item())
            torch.testing.assert_close(ours[s, : len(token_ids[s])], theirs, rtol=0, atol=atol)
