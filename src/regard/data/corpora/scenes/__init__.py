"""Scenes: small pictures of coloured shapes, what they show in words, and where in the picture each word is.

Captioners learn from them with nothing to download, and where they look can be scored, since the truth is known.
"""

from .scene import Box, CaptionWord, Scene
from .scene_generator import SIZE, pairs, picture, scene

__all__ = ["SIZE", "Box", "CaptionWord", "Scene", "pairs", "picture", "scene"]
