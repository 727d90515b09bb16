"""An animation of a matplotlib figure: it plays in a notebook, and can be saved as one file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import os
    from collections.abc import Callable


class Animation:
    """`draw(n)` draws frame n of `frames` into `figure`. Nothing is drawn before it is shown or saved."""

    def __init__(self, figure: Any, draw: Callable[[int], Any], frames: int, seconds: float = 0.7) -> None:
        import matplotlib.pyplot as plt

        self.figure, self.draw, self.frames, self.seconds = figure, draw, frames, seconds
        plt.close(figure)  # a notebook would show the empty figure as well

    def _film(self) -> Any:
        from matplotlib.animation import FuncAnimation

        return FuncAnimation(self.figure, self.draw, frames=self.frames, interval=1000 * self.seconds)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it as .webp or .gif."""
        self._film().save(path, writer="pillow", dpi=80)

    def _repr_html_(self) -> str:
        page: str = self._film().to_jshtml()
        return page
