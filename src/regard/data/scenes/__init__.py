"""Scenes: small pictures of coloured shapes, what they show in words, and where in the picture each word is.

Captioners learn from them with nothing to download, and where they look can be scored, since the truth is known.
"""

from .album import SIZE, pairs, picture, scene
from .scene import Box, Scene, Word

__all__ = ["SIZE", "Box", "Scene", "Word", "pairs", "picture", "scene"]
