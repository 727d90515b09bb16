"""Encoders × decoders: every system is one composition."""

from .annotations import Annotations
from .classifier import Classifier, ClassifierConfig, HeadConfig
from .cross_entropy import Loss
from .decoders.decoder import Decoder, DecoderConfig, DecoderOutput, State
from .decoders.lstmn_decoder import LSTMNDecoderConfig
from .decoders.recurrent_decoder import RecurrentDecoderConfig
from .decoders.show_attend_tell_decoder import ShowAttendTellDecoderConfig
from .decoders.transformer_decoder import TransformerDecoderConfig
from .encoder_decoder import EncoderDecoder, EncoderDecoderConfig
from .encoders.bag_encoder import BagEncoderConfig
from .encoders.convolution_encoder import ConvolutionEncoderConfig
from .encoders.efficientnet_encoder import EfficientNetEncoderConfig
from .encoders.encoder import Encoder, EncoderConfig
from .encoders.grid_encoder import GridEncoderConfig
from .encoders.lstmn_encoder import LSTMNEncoderConfig
from .encoders.no_encoder import NoEncoderConfig
from .encoders.recurrent_encoder import RecurrentEncoderConfig
from .encoders.transformer_encoder import TransformerEncoderConfig
from .load_model import load
from .registry import DECODERS, ENCODERS

__all__ = [
    "DECODERS",
    "ENCODERS",
    "Annotations",
    "BagEncoderConfig",
    "Classifier",
    "ClassifierConfig",
    "ConvolutionEncoderConfig",
    "Decoder",
    "DecoderConfig",
    "DecoderOutput",
    "EfficientNetEncoderConfig",
    "Encoder",
    "EncoderConfig",
    "EncoderDecoder",
    "EncoderDecoderConfig",
    "GridEncoderConfig",
    "HeadConfig",
    "LSTMNDecoderConfig",
    "LSTMNEncoderConfig",
    "Loss",
    "NoEncoderConfig",
    "RecurrentDecoderConfig",
    "RecurrentEncoderConfig",
    "ShowAttendTellDecoderConfig",
    "State",
    "TransformerDecoderConfig",
    "TransformerEncoderConfig",
    "load",
]
