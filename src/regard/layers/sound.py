"""Sound as a picture: how strong each band of pitches is, frame by frame, on the ear's scales of pitch and loudness."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from ..attention.parts import exact

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from torch import Tensor


class LogMel(nn.Module):
    """S[t, m] = log max(Σ_f B[f, m] |X[t, f]|², floor), the log-mel spectrogram (Davis & Mermelstein 1980).

        X[t, f] = Σ_n hann[n] x[t·hop + n] e^(−2πi f n / N),   hann[n] = ½ − ½ cos(2πn / window)

    N is the window rounded up to a power of two. B holds `bands` triangles over the frequencies f·rate/N; their corners
    lie evenly on the mel scale mel(f) = 2595 log₁₀(1 + f/700) (O'Shaughnessy 1987; HTK's) from 0 to rate/2, and
    neighbours overlap by half. Frames begin every `hop` samples and lie wholly within the sound; a sound shorter than
    one window is one frame, filled up with silence.
    """

    def __init__(
        self, rate: int = 8000, bands: int = 40, window: float = 0.025, hop: float = 0.010, floor: float = 1e-8
    ) -> None:
        super().__init__()
        self.rate, self.bands, self.floor = rate, bands, floor
        self.window, self.hop = round(window * rate), round(hop * rate)
        self.size = 1 << (self.window - 1).bit_length()  # N
        self.hann: Float[Tensor, "window"]
        self.bank: Float[Tensor, "frequencies bands"]
        # They follow from the numbers above, so no file of weights holds them.
        self.register_buffer("hann", torch.hann_window(self.window), persistent=False)
        with torch.device("cpu"):  # its numbers are checked, which the meta device has none of
            bank = triangles(rate, self.size, bands)
        self.register_buffer("bank", bank.to(torch.get_default_device()), persistent=False)

    def frames(self, lengths: Int[Tensor, "batch"]) -> Int[Tensor, "batch"]:
        """How many frames sounds of so many samples have."""
        return 1 + (lengths - self.window).clamp_min(0) // self.hop

    def forward(self, sound: Float[Tensor, "batch samples"]) -> Float[Tensor, "batch frames bands"]:
        """`sound` lies between −1 and 1. Computed in float32 or wider, also under autocast."""
        wide = torch.promote_types(self.hann.dtype, torch.float32)
        with exact(sound.device):
            x = nn.functional.pad(sound.to(wide), (0, max(0, self.window - sound.shape[1])))
            x = x.unfold(1, self.window, self.hop) * self.hann.to(wide)  # [batch, frames, window]
            power = torch.fft.rfft(x, self.size).abs().square()  # [batch, frames, N/2 + 1]
            energies: Tensor = (power @ self.bank.to(wide)).clamp_min(self.floor)
            return energies.log()

    def extra_repr(self) -> str:
        return f"rate={self.rate}, bands={self.bands}, window={self.window}, hop={self.hop}"


def triangles(rate: int, size: int, bands: int) -> Float[Tensor, "frequencies bands"]:
    """B[f, m]: rises from corner m to corner m + 1, where it is 1, and falls to corner m + 2."""
    top = _mel(torch.tensor(rate / 2, dtype=torch.float64))
    corners = 700 * (10 ** (torch.linspace(0, float(top), bands + 2, dtype=torch.float64) / 2595) - 1)  # in Hz
    frequencies = torch.arange(size // 2 + 1, dtype=torch.float64)[:, None] * (rate / size)
    low, middle, high = corners[:-2], corners[1:-1], corners[2:]
    rising, falling = (frequencies - low) / (middle - low), (high - frequencies) / (high - middle)
    bank = torch.minimum(rising, falling).clamp_min(0)
    if not bool(bank.any(0).all()):
        raise ValueError(
            f"{bands} bands are too many for windows of {size} samples at {rate} Hz: some would hold no frequency; "
            "take fewer bands or longer windows"
        )
    return bank.float()


def _mel(frequency: Tensor) -> Tensor:
    return 2595 * torch.log10(1 + frequency / 700)
