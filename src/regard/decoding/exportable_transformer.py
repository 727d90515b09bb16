"""Which Transformers other libraries compute as we do: rules that CTranslate2 and transformers have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..models.encoders.sequences import TransformerConfig

if TYPE_CHECKING:
    from ..models import EncoderDecoder


def transformer_parts(model: EncoderDecoder, library: str) -> list[TransformerConfig]:
    """The configurations of encoder and decoder, or of a language model's decoder alone; a ValueError that says why
    the library has no such model."""
    config = model.config
    sides: list[tuple[str, Any]] = [("decoder", config.decoder)]
    if config.encoder.kind != "none":
        sides = [("encoder", config.encoder), *sides]
    parts: list[TransformerConfig] = []
    for side, part in sides:
        # A plug-in below TransformerConfig has a kind of its own, and may compute something else.
        if not isinstance(part, TransformerConfig) or part.kind != "transformer":
            raise ValueError(
                f"{library} runs Transformers; this model's {side} is of kind {part.kind!r}. Export it with --to onnx"
            )
        masked = getattr(part, "masked", True)
        if part.norm == "none" or not part.residual or not part.scaled or not masked:
            raise ValueError(
                "only layers with norms, residual connections, scaled energies and causal masks are exported; this "
                f"model's {side} has norm = {part.norm!r}, residual = {part.residual}, scaled = {part.scaled}, "
                f"masked = {masked}"
            )
        if part.key_heads not in (0, part.heads):
            raise ValueError(f"shared key/value heads are not exported; this model's {side} has {part.key_heads}")
        parts.append(part)
    if config.encoder.reads not in ("text", "none"):
        raise ValueError(f"{library} runs models of text; this model reads {config.encoder.reads}")
    if len({part.width for part in parts}) > 1:
        raise ValueError(f"encoder and decoder must be equally wide, not {parts[0].width} and {parts[1].width}")
    return parts
