"""The special tokens, with which every vocabulary of ours begins."""

from __future__ import annotations

SPECIALS = ["<pad>", "<s>", "</s>", "<unk>"]
PAD, BEGIN, END, UNKNOWN = range(len(SPECIALS))
"""Their ids."""
