"""From configs to modules: which encoder reads, which decoder writes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import config as configs
from .decoders.lstmn_decoder import LSTMNDecoder
from .decoders.recurrent_decoder import RecurrentDecoder
from .decoders.show_attend_tell import TellDecoder
from .decoders.transformer_decoder import TransformerDecoder
from .encoders.bag_encoder import BagEncoder
from .encoders.convolution_encoder import ConvolutionEncoder
from .encoders.efficientnet import EfficientNetEncoder
from .encoders.grid_encoder import GridEncoder
from .encoders.lstmn_encoder import LSTMNEncoder
from .encoders.sequence_encoders import NoEncoder, RecurrentEncoder, TransformerEncoder, embedding

if TYPE_CHECKING:
    from torch import nn

    from .decoders.decoder import Decoder
    from .encoders.encoder import Encoder


def encoder_of(config: configs.Encoder, vocabulary: int, longest: int) -> Encoder:
    """The encoder of a config; one that reads text has a table of `vocabulary` words."""
    if isinstance(config, configs.NoEncoder):
        return NoEncoder()
    if isinstance(config, configs.RecurrentEncoder):
        return RecurrentEncoder(config, _embedding(config.reads, vocabulary, config.embedding))
    if isinstance(config, configs.LSTMNEncoder):
        return LSTMNEncoder(config, _embedding(config.reads, vocabulary, config.embedding))
    if isinstance(config, configs.BagEncoder):
        return BagEncoder(config, embedding(vocabulary, config.width))
    if isinstance(config, configs.ConvolutionEncoder):
        return ConvolutionEncoder(config, _embedding(config.reads, vocabulary, config.embedding))
    if isinstance(config, configs.GridEncoder):
        return GridEncoder(config)
    if isinstance(config, configs.EfficientNetEncoder):
        return EfficientNetEncoder(config)
    return TransformerEncoder(config, _embedding(config.reads, vocabulary, config.width), longest)


def decoder_of(config: configs.Decoder, vocabulary: int, memory: int, longest: int) -> Decoder[Any]:
    """A decoder over annotations `memory` wide; 0 where there are none."""
    if isinstance(config, configs.RecurrentDecoder):
        return RecurrentDecoder(config, vocabulary, memory)
    if isinstance(config, configs.LSTMNDecoder):
        return LSTMNDecoder(config, vocabulary, memory)
    if isinstance(config, configs.TellDecoder):
        return TellDecoder(config, vocabulary, memory)
    return TransformerDecoder(config, vocabulary, memory, longest)


def _embedding(reads: configs.Reads, vocabulary: int, width: int) -> nn.Module:
    """What turns a source into vectors: a table of words, or an ear."""
    if reads == "sound":
        from .encoders.sound_embedding import Hearing

        return Hearing(width)
    if not vocabulary:
        raise ValueError("an encoder that reads text needs a vocabulary; source_vocabulary is 0")
    return embedding(vocabulary, width)
