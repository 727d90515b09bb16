"""Time and memory beside the best alternative."""

import os

os.environ.setdefault("REGARD_DATA", "../shared/data")  # the corpora, beside this repository
