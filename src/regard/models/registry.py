"""The table of encoders and decoders: each configuration class, by the `kind` that config.json and recipes name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .decoders.lstmn import LSTMNDecoderConfig
from .decoders.recurrent import RecurrentDecoderConfig
from .decoders.show_attend_tell import ShowAttendTellDecoderConfig
from .decoders.transformer import TransformerDecoderConfig
from .encoders.pictures import EfficientNetEncoderConfig, GridEncoderConfig
from .encoders.sequences import (
    BagEncoderConfig,
    ConvolutionEncoderConfig,
    LSTMNEncoderConfig,
    NoEncoderConfig,
    RecurrentEncoderConfig,
    TransformerEncoderConfig,
)

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
