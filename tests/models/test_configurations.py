"""A model's config, as it is read from a file that anybody may have written."""

from __future__ import annotations

from typing import Any

import pytest

from regard.models import (
    DECODERS,
    ENCODERS,
    DecoderConfig,
    EncoderConfig,
    EncoderDecoderConfig,
    GridEncoderConfig,
    RecurrentDecoderConfig,
    RecurrentEncoderConfig,
    ShowAttendTellDecoderConfig,
    TransformerDecoderConfig,
    TransformerEncoderConfig,
)


def written(**changed: Any) -> dict[str, Any]:
    """What `to_dict` wrote, with some keys changed (`encoder__width` is that of the encoder), or, by ..., left out."""
    values = EncoderDecoderConfig(20, 30, RecurrentEncoderConfig()).to_dict()
    for name, value in changed.items():
        *part, key = name.split("__")
        into = values[part[0]] if part else values
        into[key] = value
        if value is ...:
            del into[key]
    return values


@pytest.mark.parametrize("encoder", [RecurrentEncoderConfig(dropout=0), TransformerEncoderConfig(key_heads=2)])
@pytest.mark.parametrize("decoder", [RecurrentDecoderConfig(), TransformerDecoderConfig(norm="post")])
def test_what_was_written_is_read_again(encoder: EncoderConfig, decoder: DecoderConfig) -> None:
    made = EncoderDecoderConfig(20, 30, encoder, decoder, tied="decoder")
    assert EncoderDecoderConfig.from_dict(made.to_dict()) == made


def test_what_has_a_default_may_be_left_out() -> None:
    assert EncoderDecoderConfig.from_dict(written(longest=..., decoder__norm=...)) == EncoderDecoderConfig.from_dict(
        written()
    )


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"source_vocabulary": ...}, "config.source_vocabulary is missing"),
        ({"target_vocabulary": "many"}, "config.target_vocabulary is 'many'; it must be a whole number ≥ 1"),
        ({"longest": 0}, "config.longest is 0; it must be a whole number ≥ 1"),
        ({"tied": "both"}, "config.tied is 'both'; it must be one of none, decoder, all"),
        ({"tied": ["all"]}, "config.tied is ['all']; it must be one of"),
        ({"colour": "red"}, "config has unknown keys: colour"),
        (
            {"encoder": ...},
            "encoder is None; it must be a table with a kind, one of " + ", ".join(sorted(ENCODERS)),
        ),
        ({"decoder": [1]}, "decoder is [1]; it must be a table"),
        ({"decoder__kind": ...}, "decoder.kind is None; known kinds are " + ", ".join(sorted(DECODERS))),
        ({"decoder__kind": []}, "decoder.kind is []; known kinds are"),
        ({"encoder__width": -8}, "encoder.width is -8; it must be a whole number ≥ 1"),
        ({"encoder__width": 8.0}, "encoder.width is 8.0; it must be a whole number ≥ 1"),
        ({"encoder__layers": True}, "encoder.layers is True; it must be a whole number ≥ 1"),
        ({"encoder__cell": "rnn"}, "encoder.cell is 'rnn'; it must be one of gru, lstm"),
        ({"encoder__bidirectional": 1}, "encoder.bidirectional is 1; it must be true or false"),
        ({"encoder__dropout": 1.0}, "encoder.dropout is 1.0; it must be a number"),
        ({"encoder__dropout": float("nan")}, "encoder.dropout is nan; it must be a number"),
        ({"decoder__dropout": None}, "decoder.dropout is None; it must be a number"),
        ({"decoder__key_heads": -1}, "decoder.key_heads is -1; it must be"),
    ],
)
def test_what_cannot_be_is_named(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as refused:  # noqa: PT011  the message is compared below, as it stands
        EncoderDecoderConfig.from_dict(written(**changed))
    assert message in str(refused.value)


def test_what_is_no_share_may_be_one_and_more() -> None:
    decoder_config = ShowAttendTellDecoderConfig(penalty=1.0, reward=2.5)
    written = EncoderDecoderConfig(0, 10, GridEncoderConfig(), decoder_config).to_dict()
    assert EncoderDecoderConfig.from_dict(written).decoder == decoder_config
