"""Limits of one request to `regard serve`."""

BODY = 1 << 20
"""Bytes of a request."""
TEXTS = 256
"""Texts of a request."""
CHARACTERS = 5_000
"""Of a text."""
BEAMS = 16
WEIGHTS = 1_000_000
"""Attention weights of an answer, about 8 bytes each: 256 texts of 60 words have as many."""
POSSIBLE_WEIGHTS = 16 * WEIGHTS
"""Weights of an answer whose outputs are as long as the search allows; with more, the request is not computed."""
SECONDS = 60.0
"""A request that is not answered after so long gets a 503."""
