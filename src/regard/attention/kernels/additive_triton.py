"""The op `regard::additive` on the GPU, in Triton; the same kernels run on a CPU with TRITON_INTERPRET=1."""

from .additive_triton_backward import backward
from .additive_triton_forward import forward

__all__ = ["backward", "forward"]
