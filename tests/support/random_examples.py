"""How many random examples property tests draw: REGARD_EXAMPLES, 30 unless it is set, and `make sweep` for many."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

EXAMPLES = "regard"
"""The profile's name, for `settings.load_profile`."""

settings.register_profile(
    EXAMPLES,
    max_examples=int(os.environ.get("REGARD_EXAMPLES", "30")),
    derandomize="CI" in os.environ,  # fresh examples for people, the same ones where a red run blocks everyone
    deadline=None,  # timings never decide a test
    suppress_health_check=[HealthCheck.too_slow],
)
