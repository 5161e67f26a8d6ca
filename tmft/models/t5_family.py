"""The registry entries of T5, mT5 and umT5, with and without the decoder."""

from dataclasses import replace
from functools import partial

import tmft.models.t5 as t5
import tmft.models.t5_decoder as t5_decoder
from tmft.models.family import Family

FAMILIES = {
    "t5": Family(
        config=t5.T5Config,
        encoder=lambda config, layer: (
            t5_decoder.T5WithDecoder(config, layer) if config.components else t5.T5Encoder(config, layer)
        ),
        config_from_hf=t5.config_from_hf,
        config_to_hf=t5.config_to_hf,
        weight_names=t5.WEIGHT_NAMES | t5_decoder.WEIGHT_NAMES,
        prefixes=("transformer.",),
        ignored_heads=t5.IGNORED_HEADS,
        transformers_class="T5EncoderModel",
        checks=(t5.T5Config.check,),
        config_names=t5.CONFIG_NAMES,
        components=("decoder",),
        seq2seq_class="T5ForConditionalGeneration",
        tokenizer="t5",
        bert_incompatible="it has relative positions, no biases and another norm",
        first_layer_needed="all layers share its relative position embeddings",
    ),
}
FAMILIES["mt5"] = replace(
    FAMILIES["t5"],
    config_from_hf=partial(t5.config_from_hf, feed_forward_proj="gated-gelu"),
    transformers_class="MT5EncoderModel",
    seq2seq_class=None,
)
FAMILIES["umt5"] = replace(
    FAMILIES["t5"],
    config_from_hf=partial(t5.config_from_hf, feed_forward_proj="gated-gelu", bias_in_each_layer=True),
    transformers_class="UMT5EncoderModel",
    seq2seq_class=None,
    first_layer_needed="",
)
