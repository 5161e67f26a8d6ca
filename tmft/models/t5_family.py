"""The registry entries of T5, mT5 and umT5, with and without the decoder."""

from dataclasses import replace

import tmft.models.t5 as t5
import tmft.models.t5_decoder as t5_decoder
from tmft.models.family import Family

FAMILIES = {
    "t5": Family(
        config=t5.T5Config,
        encoder=lambda config, layer: (
            t5_decoder.T5WithDecoder(config, layer) if config.components else t5.T5Encoder(config, layer)
        ),
        keys=t5.KEYS,
        other_keys=t5.OTHER_KEYS,
        complete=t5.complete_t5,
        extra_keys=lambda config: {"is_encoder_decoder": bool(config.components)},
        weight_names=t5.WEIGHT_NAMES | t5_decoder.WEIGHT_NAMES,
        prefixes=("transformer.",),
        ignored_heads=t5.IGNORED_HEADS,
        transformers_class="T5EncoderModel",
        class_with_components="T5Model",
        components=("decoder",),
        seq2seq_class="T5ForConditionalGeneration",
        tokenizer="t5",
        bert_incompatible="it has relative positions, no biases and another norm",
        first_layer_needed="all layers share its relative position embeddings",
    ),
}
FAMILIES["mt5"] = replace(
    FAMILIES["t5"],
    config=t5.MT5Config,
    transformers_class="MT5EncoderModel",
    class_with_components="MT5Model",
    seq2seq_class=None,
)
FAMILIES["umt5"] = replace(
    FAMILIES["t5"],
    config=t5.UMT5Config,
    transformers_class="UMT5EncoderModel",
    class_with_components="UMT5Model",
    seq2seq_class=None,
    first_layer_needed="",
)
