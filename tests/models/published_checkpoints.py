"""The sentence encoders of docs/checkpoints.md: what their repositories hold, their table, small stand-ins.

`python tests/models/published_checkpoints.py` prints the table. The keys and sizes are those of the
repositories on the hub, as far as they are known from their pages: a repository may have changed since.
"""

import json
import sys
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors.torch import save_file

sys.path.append(str(Path(__file__).resolve().parents[2]))  # when this file is run as a script

from tmft.models.families import FAMILIES, config_from_dict, parameter_counts  # noqa: E402


@dataclass
class Published:
    """A checkpoint on the hub.

    config: its config.json. form: the form of its tokenizer, a key of FORMS in tests/tokenizer_forms.py.
    pooling: as in 1_Pooling/config.json; None for a base model, which has no modules.json.
    modules: what follows the pooling: "Normalize", or (in_features, out_features, bias, activation) of a
    Dense. max_length: in sentence_bert_config.json. prompts, similarity: in
    config_sentence_transformers.json. by_hand: prompts that its card asks for, and that are in no file.
    millions: parameters as its card or its paper states them, usually with a pooler and with Dense.
    """

    config: dict
    form: str
    pooling: str | None
    modules: tuple = ()
    max_length: int | None = 512
    prompts: dict[str, str] = field(default_factory=dict)
    similarity: str | None = None
    by_hand: str = ""
    millions: float = 0


# ------------------------------------------------------------------------------------------- config.json


def bert(vocab: int, width: int, layers: int, heads: int, **more) -> dict:
    return {
        "model_type": "bert",
        "architectures": ["BertModel"],
        "attention_probs_dropout_prob": 0.1,
        "classifier_dropout": None,
        "hidden_act": "gelu",
        "hidden_dropout_prob": 0.1,
        "hidden_size": width,
        "initializer_range": 0.02,
        "intermediate_size": 4 * width,
        "layer_norm_eps": 1e-12,
        "max_position_embeddings": 512,
        "num_attention_heads": heads,
        "num_hidden_layers": layers,
        "pad_token_id": 0,
        "position_embedding_type": "absolute",
        "type_vocab_size": 2,
        "use_cache": True,
        "vocab_size": vocab,
        **more,
    }


def roberta(vocab: int, width: int, layers: int, heads: int, kind: str = "roberta", **more) -> dict:
    classes = {"roberta": "RobertaModel", "xlm-roberta": "XLMRobertaModel", "camembert": "CamembertModel"}
    special = {"architectures": [classes[kind]], "bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 1}
    sizes = {"layer_norm_eps": 1e-5, "max_position_embeddings": 514, "type_vocab_size": 1}
    return bert(vocab, width, layers, heads) | {"model_type": kind} | special | sizes | more


def distilbert(vocab: int, **more) -> dict:
    return {
        "model_type": "distilbert",
        "architectures": ["DistilBertModel"],
        "activation": "gelu",
        "attention_dropout": 0.1,
        "dim": 768,
        "dropout": 0.1,
        "hidden_dim": 3072,
        "initializer_range": 0.02,
        "max_position_embeddings": 512,
        "n_heads": 12,
        "n_layers": 6,
        "pad_token_id": 0,
        "qa_dropout": 0.1,
        "seq_classif_dropout": 0.2,
        "sinusoidal_pos_embds": False,
        "tie_weights_": True,
        "vocab_size": vocab,
        **more,
    }


def mpnet() -> dict:
    content = bert(30527, 768, 12, 12) | {"model_type": "mpnet", "architectures": ["MPNetModel"]}
    content |= {"bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 1, "layer_norm_eps": 1e-5}
    content |= {"max_position_embeddings": 514, "relative_attention_num_buckets": 32}
    return {key: content[key] for key in content.keys() - {"type_vocab_size", "use_cache"}}


def modernbert(vocab: int = 50368, width: int = 768, layers: int = 22, heads: int = 12, inner: int = 1152):
    return {
        "model_type": "modernbert",
        "architectures": ["ModernBertModel"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": 50281,
        "classifier_activation": "gelu",
        "classifier_bias": False,
        "classifier_dropout": 0.0,
        "classifier_pooling": "mean",
        "cls_token_id": 50281,
        "decoder_bias": True,
        "deterministic_flash_attn": False,
        "embedding_dropout": 0.0,
        "eos_token_id": 50282,
        "global_attn_every_n_layers": 3,
        "global_rope_theta": 160000.0,
        "hidden_activation": "gelu",
        "hidden_size": width,
        "initializer_cutoff_factor": 2.0,
        "initializer_range": 0.02,
        "intermediate_size": inner,
        "layer_norm_eps": 1e-5,
        "local_attention": 128,
        "local_rope_theta": 10000.0,
        "max_position_embeddings": 8192,
        "mlp_bias": False,
        "mlp_dropout": 0.0,
        "norm_bias": False,
        "norm_eps": 1e-5,
        "num_attention_heads": heads,
        "num_hidden_layers": layers,
        "pad_token_id": 50283,
        "position_embedding_type": "absolute",
        "reference_compile": True,
        "sep_token_id": 50282,
        "sparse_pred_ignore_index": -100,
        "sparse_prediction": False,
        "vocab_size": vocab,
    }


def qwen3(vocab: int, width: int, layers: int, heads: int, inner: int, tied: bool) -> dict:
    return {
        "model_type": "qwen3",
        "architectures": ["Qwen3ForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": 151643,
        "eos_token_id": 151643,
        "head_dim": 128,
        "hidden_act": "silu",
        "hidden_size": width,
        "initializer_range": 0.02,
        "intermediate_size": inner,
        "max_position_embeddings": 32768,
        "max_window_layers": layers,
        "num_attention_heads": heads,
        "num_hidden_layers": layers,
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-6,
        "rope_scaling": None,
        "rope_theta": 1000000,
        "sliding_window": None,
        "tie_word_embeddings": tied,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "use_sliding_window": False,
        "vocab_size": vocab,
    }


MISTRAL = {
    "model_type": "mistral",
    "architectures": ["MistralModel"],
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "initializer_range": 0.02,
    "intermediate_size": 14336,
    "max_position_embeddings": 32768,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "pad_token_id": 2,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "sliding_window": 4096,
    "tie_word_embeddings": False,
    "torch_dtype": "float16",
    "use_cache": False,
    "vocab_size": 32000,
}
GEMMA = {
    "model_type": "gemma3_text",
    "architectures": ["Gemma3TextModel"],
    "_sliding_window_pattern": 6,
    "attention_bias": False,
    "attention_dropout": 0.0,
    "attn_logit_softcapping": None,
    "bos_token_id": 2,
    "dtype": "float32",
    "eos_token_id": 1,
    "final_logit_softcapping": None,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "hidden_size": 768,
    "initializer_range": 0.02,
    "intermediate_size": 1152,
    "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 4,
    "max_position_embeddings": 2048,
    "num_attention_heads": 3,
    "num_hidden_layers": 24,
    "num_key_value_heads": 1,
    "pad_token_id": 0,
    "query_pre_attn_scalar": 256,
    "rms_norm_eps": 1e-6,
    "rope_local_base_freq": 10000.0,
    "rope_scaling": None,
    "rope_theta": 1000000.0,
    "sliding_window": 512,
    "use_bidirectional_attention": True,
    "use_cache": True,
    "vocab_size": 262144,
}
EUROBERT = {
    "model_type": "eurobert",
    "architectures": ["EuroBertForMaskedLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 128000,
    "eos_token_id": 128001,
    "head_dim": 64,
    "hidden_act": "silu",
    "hidden_size": 768,
    "initializer_range": 0.02,
    "intermediate_size": 3072,
    "mask_token_id": 128002,
    "max_position_embeddings": 8192,
    "mlp_bias": False,
    "num_attention_heads": 12,
    "num_hidden_layers": 12,
    "num_key_value_heads": 12,
    "pad_token_id": 128001,
    "rms_norm_eps": 1e-5,
    "rope_scaling": None,
    "rope_theta": 250000,
    "tie_word_embeddings": False,
    "use_cache": False,
    "vocab_size": 128256,
}
NOMIC = {
    "model_type": "nomic_bert",
    "architectures": ["NomicBertModel"],
    "activation_function": "swiglu",
    "attn_pdrop": 0.0,
    "causal": False,
    "embd_pdrop": 0.0,
    "initializer_range": 0.02,
    "layer_norm_epsilon": 1e-12,
    "mlp_fc1_bias": False,
    "mlp_fc2_bias": False,
    "n_embd": 768,
    "n_head": 12,
    "n_inner": 3072,
    "n_layer": 12,
    "n_positions": 8192,
    "pad_vocab_size_multiple": 64,
    "prenorm": False,
    "qkv_proj_bias": False,
    "resid_pdrop": 0.0,
    "rotary_emb_base": 1000,
    "rotary_emb_fraction": 1.0,
    "rotary_emb_interleaved": False,
    "rotary_emb_scale_base": None,
    "rotary_scaling_factor": None,
    "type_vocab_size": 2,
    "use_rms_norm": False,
    "vocab_size": 30528,
}


def gte(vocab: int, types: int, pad: int, theta: float, factor: float) -> dict:
    content = bert(vocab, 768, 12, 12) | {"model_type": "new", "architectures": ["NewModel"]}
    content |= {"attention_probs_dropout_prob": 0.0, "max_position_embeddings": 8192, "pad_token_id": pad}
    content |= {"position_embedding_type": "rope", "rope_theta": theta, "type_vocab_size": types}
    content |= {"rope_scaling": {"factor": factor, "type": "ntk"}, "layer_norm_type": "layer_norm"}
    content |= {"pack_qkv": True, "unpad_inputs": False, "use_memory_efficient_attention": False}
    return content | {"logn_attention_scale": False, "logn_attention_clip1": False}


def t5() -> dict:
    return {
        "model_type": "t5",
        "architectures": ["T5EncoderModel"],
        "d_ff": 3072,
        "d_kv": 64,
        "d_model": 768,
        "decoder_start_token_id": 0,
        "dropout_rate": 0.1,
        "eos_token_id": 1,
        "feed_forward_proj": "relu",
        "initializer_factor": 1.0,
        "is_encoder_decoder": True,
        "layer_norm_epsilon": 1e-6,
        "n_positions": 512,
        "num_decoder_layers": 12,
        "num_heads": 12,
        "num_layers": 12,
        "pad_token_id": 0,
        "relative_attention_num_buckets": 32,
        "use_cache": True,
        "vocab_size": 32128,
    }


# ------------------------------------------------------------------------------------------- checkpoints

NORM = ("Normalize",)
BERT_FORM, XLM_FORM, XLM_BERT_FORM = (
    "bert tokenizer.json",
    "xlm-roberta tokenizer.json",
    "xlm-roberta tokenizer.json of a bert",
)
REPRESENT = "Represent this sentence for searching relevant passages: "
E5 = '"query: ", "passage: "'
STS_QUERY = "Instruct: Retrieve semantically similar text.\nQuery: "
WEB = "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery:"
GEMMA_PROMPTS = {
    "query": "task: search result | query: ",
    "document": "title: none | text: ",
    "STS": "task: sentence similarity | query: ",
    "Clustering": "task: clustering | query: ",
    "Classification": "task: classification | query: ",
    "Summarization": "task: summarization | query: ",
}
GEMMA_DENSE = (768, 3072, False, "Identity"), (3072, 768, False, "Identity")
QWEN_FORM = "qwen embedding tokenizer.json"
QWEN = {"form": QWEN_FORM, "pooling": "lasttoken", "modules": NORM, "max_length": 32768}
QWEN |= {"prompts": {"query": WEB, "document": ""}, "similarity": "cosine"}
MINILM = bert(30522, 384, 6, 12)
BASE, LARGE = bert(30522, 768, 12, 12), bert(30522, 1024, 24, 16)
XLM_BASE, XLM_LARGE = (
    roberta(250002, 768, 12, 12, "xlm-roberta"),
    roberta(250002, 1024, 24, 16, "xlm-roberta"),
)
M3 = XLM_LARGE | {"max_position_embeddings": 8194}
MODERN = {"form": "modernbert tokenizer.json", "max_length": 8192}

# fmt: off
CHECKPOINTS = {
    # BERT
    "sentence-transformers/all-MiniLM-L6-v2": Published(MINILM, BERT_FORM, "mean", NORM, 256, millions=22.7),
    "sentence-transformers/all-MiniLM-L12-v2": Published(
        MINILM | {"num_hidden_layers": 12}, BERT_FORM, "mean", NORM, 128, millions=33.4),
    "BAAI/bge-small-en-v1.5": Published(
        MINILM | {"num_hidden_layers": 12}, BERT_FORM, "cls", NORM, by_hand=f'query: "{REPRESENT}"',
        millions=33.4),
    "BAAI/bge-base-en-v1.5": Published(
        BASE, BERT_FORM, "cls", NORM, by_hand=f'query: "{REPRESENT}"', millions=109),
    "BAAI/bge-large-en-v1.5": Published(
        LARGE, BERT_FORM, "cls", NORM, by_hand=f'query: "{REPRESENT}"', millions=335),
    "intfloat/e5-base-v2": Published(BASE, BERT_FORM, "mean", NORM, by_hand=E5, millions=109),
    "thenlper/gte-small": Published(
        MINILM | {"num_hidden_layers": 12}, BERT_FORM, "mean", NORM, millions=33.4),
    "mixedbread-ai/mxbai-embed-large-v1": Published(
        LARGE, BERT_FORM, "cls", prompts={"query": REPRESENT, "passage": ""}, millions=335),
    "Snowflake/snowflake-arctic-embed-m": Published(
        BASE, BERT_FORM, "cls", NORM, prompts={"query": REPRESENT}, millions=109),
    "sentence-transformers/LaBSE": Published(
        bert(501153, 768, 12, 12), BERT_FORM, "cls", ((768, 768, True, "Tanh"), *NORM), 256, millions=471),
    "sentence-transformers/paraphrase-multilingual-MiniLM-L12-v2": Published(
        bert(250037, 384, 12, 12), XLM_BERT_FORM, "mean", (), 128, millions=118),
    "intfloat/multilingual-e5-small": Published(
        bert(250037, 384, 12, 12), XLM_BERT_FORM, "mean", NORM, by_hand=E5, millions=118),
    # RoBERTa, XLM-RoBERTa, CamemBERT
    "sentence-transformers/all-distilroberta-v1": Published(
        roberta(50265, 768, 6, 12), "roberta tokenizer.json", "mean", NORM, millions=82.1),
    "ibm-granite/granite-embedding-125m-english": Published(
        roberta(50265, 768, 12, 12), "roberta tokenizer.json", "cls", NORM, millions=125),
    "sentence-transformers/paraphrase-multilingual-mpnet-base-v2": Published(
        XLM_BASE, XLM_FORM, "mean", (), 128, millions=278),
    "intfloat/multilingual-e5-base": Published(XLM_BASE, XLM_FORM, "mean", NORM, by_hand=E5, millions=278),
    "intfloat/multilingual-e5-large": Published(
        XLM_LARGE, XLM_FORM, "mean", NORM, by_hand=E5, millions=560),
    "intfloat/multilingual-e5-large-instruct": Published(
        XLM_LARGE, XLM_FORM, "mean", NORM, by_hand='query: "Instruct: {task}\\nQuery: "', millions=560),
    "BAAI/bge-m3": Published(M3, XLM_FORM, "cls", NORM, 8192, millions=568),
    "Snowflake/snowflake-arctic-embed-l-v2.0": Published(
        M3, XLM_FORM, "cls", NORM, 8192, {"query": "query: "}, millions=568),
    "dangvantuan/sentence-camembert-base": Published(
        roberta(32005, 768, 12, 12, "camembert", bos_token_id=5, eos_token_id=6), "camembert tokenizer.json",
        "mean", (), 128, millions=111),
    # DistilBERT, MPNet, ALBERT
    "sentence-transformers/multi-qa-distilbert-cos-v1": Published(
        distilbert(30522), BERT_FORM, "mean", NORM, millions=66.4),
    "sentence-transformers/msmarco-distilbert-base-tas-b": Published(
        distilbert(30522), BERT_FORM, "cls", similarity="dot", millions=66.4),
    "sentence-transformers/distiluse-base-multilingual-cased-v2": Published(
        distilbert(119547), BERT_FORM, "mean", ((768, 512, True, "Tanh"),), 128, millions=135),
    "sentence-transformers/all-mpnet-base-v2": Published(
        mpnet(), "mpnet vocab.txt", "mean", NORM, 384, millions=109),
    "sentence-transformers/multi-qa-mpnet-base-dot-v1": Published(
        mpnet(), "mpnet vocab.txt", "cls", similarity="dot", millions=109),
    # ModernBERT
    "nomic-ai/modernbert-embed-base": Published(
        modernbert(), pooling="mean", modules=NORM, by_hand='"search_query: ", "search_document: "',
        millions=149, **MODERN),
    "Alibaba-NLP/gte-modernbert-base": Published(modernbert(), pooling="cls", millions=149, **MODERN),
    "ibm-granite/granite-embedding-english-r2": Published(
        modernbert(), pooling="cls", modules=NORM, millions=149, **MODERN),
    # NomicBERT, GTE
    "nomic-ai/nomic-embed-text-v1.5": Published(
        NOMIC, BERT_FORM, "mean", (), 2048,  # its files ask for 8192; it was trained on 2048, our limit
        by_hand='"search_query: ", "search_document: ", "clustering: ", "classification: "', millions=137),
    "Alibaba-NLP/gte-multilingual-base": Published(
        gte(250048, 1, 1, 20000, 8.0), XLM_FORM, "cls", NORM, 8192, millions=305),
    "Alibaba-NLP/gte-base-en-v1.5": Published(
        gte(30528, 0, 0, 500000, 2.0), BERT_FORM, "cls", (), 8192, millions=137),
    # decoders
    "Qwen/Qwen3-Embedding-0.6B": Published(qwen3(151669, 1024, 28, 16, 3072, True), millions=596, **QWEN),
    "Qwen/Qwen3-Embedding-4B": Published(qwen3(151665, 2560, 36, 32, 9728, True), millions=4020, **QWEN),
    "Qwen/Qwen3-Embedding-8B": Published(qwen3(151665, 4096, 36, 32, 12288, False), millions=7570, **QWEN),
    "google/embeddinggemma-300m": Published(
        GEMMA, "gemma tokenizer.json", "mean", (*GEMMA_DENSE, *NORM), 2048, GEMMA_PROMPTS, "cosine",
        millions=308),
    "intfloat/e5-mistral-7b-instruct": Published(
        MISTRAL, "mistral tokenizer.json", "lasttoken", NORM, 4096,
        {"web_search_query": f"{WEB} ", "sts_query": STS_QUERY},
        millions=7110),
    "EuroBERT/EuroBERT-210m": Published(
        EUROBERT, "llama 3 tokenizer.json", None, max_length=None, millions=210),
    # T5
    "sentence-transformers/sentence-t5-base": Published(
        t5(), "t5 tokenizer.json", "mean", ((768, 768, False, "Identity"), *NORM), 256, millions=110),
    "sentence-transformers/gtr-t5-base": Published(
        t5(), "t5 tokenizer.json", "mean", ((768, 768, False, "Identity"), *NORM), 512, millions=110),
}
# fmt: on


# ------------------------------------------------------------------------------------------------- table


def counts(checkpoint: Published) -> tuple[float, float, float]:
    """Millions of parameters: outside the layers, of one layer (ALBERT: that all layers share), of all."""
    config = config_from_dict(checkpoint.config)
    one, two, full = (
        parameter_counts(config, layer)["stored"] / 1e6 for layer in (1, 2, config.num_hidden_layers)
    )
    return one - (two - one), two - one, full


def shapes(checkpoint: Published) -> dict:
    from tmft.models.families import empty_encoder

    return dict(empty_encoder(config_from_dict(checkpoint.config)).named_parameters())


def table() -> str:
    """The table of docs/checkpoints.md in Markdown."""
    lines = [
        "| checkpoint | family | layers x width | millions: embeddings + each layer = all | "
        "pooling, then | tokens | prompts, similarity |",
        "|---|---|---:|---|---|---:|---|",
    ]
    for name, checkpoint in CHECKPOINTS.items():
        config = config_from_dict(checkpoint.config)
        rest, layer, total = counts(checkpoint)
        dense = [entry if isinstance(entry, str) else dense_name(*entry) for entry in checkpoint.modules]
        pooling = checkpoint.pooling or "mean (base model)"
        prompts = [prompt_cell(checkpoint)] if prompt_cell(checkpoint) else []
        prompts += [checkpoint.similarity] if checkpoint.similarity not in (None, "cosine") else []
        sizes = f"{config.num_hidden_layers} x {config.hidden_size}"
        parameters = f"{rest:,.1f} + {layer:,.1f} = {total:,.1f}"
        length = checkpoint.max_length or config.default_max_length or config.max_tokens
        cells = [f"`{name}`", checkpoint.config["model_type"], sizes, parameters]
        cells += [", ".join([pooling, *dense]), f"{length:,}", "; ".join(prompts)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def dense_name(in_features: int, out_features: int, bias: bool, activation: str) -> str:
    linear = "" if activation == "Identity" else f" {activation}"
    return f"Dense {in_features} -> {out_features}{linear}"


def prompt_cell(checkpoint: Published) -> str:
    named = [name for name, text in checkpoint.prompts.items() if text]
    by_hand = checkpoint.by_hand.replace("|", "\\|")
    return ", ".join(named) or (f"by hand: {by_hand}" if by_hand else "")


# ---------------------------------------------------------------------------------------------- stand-ins

# Keys of one meaning -> their value in a stand-in.
SMALL = {
    ("hidden_size", "dim", "n_embd", "d_model"): 32,
    ("num_attention_heads", "n_heads", "n_head", "num_heads"): 4,
    ("intermediate_size", "hidden_dim", "n_inner", "d_ff"): 48,
    ("sliding_window",): 6,
    ("local_attention",): 8,
    ("embedding_size",): 16,
    ("d_kv", "query_pre_attn_scalar"): 8,
}
LAYER_KEYS = ("num_hidden_layers", "n_layers", "n_layer", "num_layers", "num_decoder_layers")
NUM_LAYERS = {"gemma3_text": 7, "modernbert": 5}  # so that there are local and global layers
LENGTH_KEYS = ("max_position_embeddings", "n_positions")
ID_KEYS = {"pad_token_id": "pad_token", "bos_token_id": "bos_token", "eos_token_id": "eos_token"}
ID_KEYS |= {"cls_token_id": "cls_token", "sep_token_id": "sep_token", "mask_token_id": "mask_token"}
ID_KEYS |= {"decoder_start_token_id": "pad_token"}


def small_config(config: dict, special_ids: dict[str, int], vocab_size: int) -> dict:
    """The same keys with small sizes. special_ids: {"pad_token": id, ...} of the tokenizer."""
    small = dict(config)
    width, heads = (next(config[key] for key in keys if key in config) for keys in list(SMALL)[:2])
    for keys, value in SMALL.items():
        small |= {key: value for key in keys if config.get(key) is not None}
    layers = NUM_LAYERS.get(config["model_type"], 3)
    small |= {key: layers for key in LAYER_KEYS if key in config}
    small |= {key: 128 + config[key] % 512 for key in LENGTH_KEYS if key in config}
    small |= {key: special_ids.get(name, 0) for key, name in ID_KEYS.items() if config.get(key) is not None}
    small["vocab_size"] = vocab_size + 3
    if "head_dim" in config:
        small["head_dim"] = 8 if config["head_dim"] * heads == width else 16
    if "num_key_value_heads" in config:
        share = heads // config["num_key_value_heads"]
        small["num_key_value_heads"] = {1: 4, heads: 1}.get(share, 2)
    if "layer_types" in config:
        small["layer_types"] = config["layer_types"][:layers]
    if "max_window_layers" in config:
        small["max_window_layers"] = layers
    return small


def write_json(path: Path, content: dict | list) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content, indent=2), encoding="utf-8")


def write_st_files(checkpoint: Published, folder: Path, width: int = 32, max_length: int = 96) -> None:
    """modules.json and the files that it names, as sentence-transformers wrote them in version 2."""
    after = [entry if entry == "Normalize" else "Dense" for entry in checkpoint.modules]
    kinds = ["Transformer", "Pooling", *after]
    paths = ["", *(f"{number}_{kind}" for number, kind in enumerate(kinds) if number)]
    modules = [
        {"idx": n, "name": str(n), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for n, (path, kind) in enumerate(zip(paths, kinds, strict=True))
    ]
    write_json(folder / "modules.json", modules)
    keys = {"cls": "cls_token", "mean": "mean_tokens", "max": "max_tokens"}
    keys |= {"mean_sqrt_len_tokens": "mean_sqrt_len_tokens", "weightedmean": "weightedmean_tokens"}
    keys |= {"lasttoken": "lasttoken"}
    pooling = {"word_embedding_dimension": width, "include_prompt": True}
    pooling |= {f"pooling_mode_{key}": name == checkpoint.pooling for name, key in keys.items()}
    write_json(folder / "1_Pooling/config.json", pooling)
    for path, entry in zip(paths[2:], checkpoint.modules, strict=True):
        (folder / path).mkdir()
        if entry == "Normalize":
            continue  # its folder is empty, and not in the repository
        in_features, out_features, bias, activation = entry
        in_features, out_features = (width * size // 768 for size in (in_features, out_features))
        module = "linear" if activation == "Identity" else "activation"
        content = {"in_features": in_features, "out_features": out_features, "bias": bias}
        content["activation_function"] = f"torch.nn.modules.{module}.{activation}"
        write_json(folder / path / "config.json", content)
        weights = {"linear.weight": torch.randn(out_features, in_features) / in_features**0.5}
        weights |= {"linear.bias": torch.randn(out_features)} if bias else {}
        save_file(weights, folder / path / "model.safetensors")
    if checkpoint.max_length:
        limit = min(checkpoint.max_length, max_length)
        write_json(folder / "sentence_bert_config.json", {"max_seq_length": limit, "do_lower_case": False})
    versions = {"sentence_transformers": "2.7.0", "transformers": "4.41.2", "pytorch": "2.3.0"}
    content = {"__version__": versions, "prompts": checkpoint.prompts, "default_prompt_name": None}
    write_json(
        folder / "config_sentence_transformers.json",
        content | {"similarity_fn_name": checkpoint.similarity},
    )


def write_stand_in(checkpoint: Published, folder: Path) -> None:
    """A repository of the same form, with small sizes and random weights, which transformers can open.

    Model types that transformers does not have get the config.json of the one that took their place.
    """
    import transformers
    from tokenizer_forms import FORMS

    from tmft.checkpoints.tokenizers import load_tokenizer

    FORMS[checkpoint.form](folder)
    tokenizer = load_tokenizer(folder)
    vocabulary = tokenizer.backend.get_vocab()
    settings_path = folder / "tokenizer_config.json"
    settings = json.loads(settings_path.read_text()) if settings_path.exists() else {}
    if "pad_token" not in tokenizer.special_tokens:  # needed to fill batches in transformers
        write_json(settings_path, settings | {"pad_token": list(tokenizer.special_tokens.values())[-1]})
        tokenizer = load_tokenizer(folder)
    names = settings | tokenizer.special_tokens
    special_ids = {key: vocabulary[name] for key, name in names.items() if str(name) in vocabulary}
    config = small_config(checkpoint.config, special_ids, max(vocabulary.values()) + 1)
    if config["model_type"] == "nomic_bert":  # transformers reads these names, and repositories have both
        config |= {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4}
        config |= {"intermediate_size": 48, "max_position_embeddings": 128}
        config |= {"rope_parameters": {"rope_type": "default", "rope_theta": 1000}}
    reference = dict(config)
    if config["model_type"] == "new":
        factor = config["rope_scaling"]["factor"]
        scaling = {"rope_type": "linear", "rope_theta": config["rope_theta"] * factor}
        scaling["factor"] = factor ** (2 / 8)  # 8 is the size of a head
        reference |= {"model_type": "gte", "rope_parameters": scaling, "position_embedding_type": "absolute"}
        del reference["rope_scaling"], reference["rope_theta"]
    write_json(folder / "config.json", reference)
    torch.manual_seed(0)
    family = FAMILIES[config["model_type"]]
    model = getattr(transformers, family.transformers_class)(transformers.AutoConfig.from_pretrained(folder))
    for name, weight in model.named_parameters():
        is_norm = weight.ndim == 1 and "norm" in name.lower()
        torch.nn.init.normal_(weight, mean=0.5 * is_norm, std=0.2)
    model.to(getattr(torch, config.get("torch_dtype", "float32"))).save_pretrained(folder)
    write_json(folder / "config.json", config)
    if checkpoint.pooling is not None:
        write_st_files(checkpoint, folder)


if __name__ == "__main__":
    print(table())
