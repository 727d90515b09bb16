"""The table of encoders and decoders: each configuration class, by the `kind` that config.json and recipes name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .decoders.lstmn_decoder import LSTMNDecoderConfig
from .decoders.recurrent_decoder import RecurrentDecoderConfig
from .decoders.show_attend_tell_decoder import ShowAttendTellDecoderConfig
from .decoders.transformer_decoder import TransformerDecoderConfig
from .encoders.bag_encoder import BagEncoderConfig
from .encoders.efficientnet_encoder import EfficientNetEncoderConfig
from .encoders.lstmn_encoder import LSTMNEncoderConfig
from .encoders.no_encoder import NoEncoderConfig
from .encoders.picture_convolution_encoder import GridEncoderConfig
from .encoders.recurrent_encoder import RecurrentEncoderConfig
from .encoders.transformer_encoder import TransformerEncoderConfig
from .encoders.window_convolution_encoder import ConvolutionEncoderConfig

if TYPE_CHECKING:
    from .decoders.decoder import DecoderConfig
    from .encoders.encoder import EncoderConfig

ENCODERS: dict[str, type[EncoderConfig]] = {
    each.kind: each
    for each in (
        NoEncoderConfig,
        RecurrentEncoderConfig,
        TransformerEncoderConfig,
        LSTMNEncoderConfig,
        BagEncoderConfig,
        ConvolutionEncoderConfig,
        GridEncoderConfig,
        EfficientNetEncoderConfig,
    )
}
DECODERS: dict[str, type[DecoderConfig]] = {
    each.kind: each
    for each in (RecurrentDecoderConfig, TransformerDecoderConfig, LSTMNDecoderConfig, ShowAttendTellDecoderConfig)
}
