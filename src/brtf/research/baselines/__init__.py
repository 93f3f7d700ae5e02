"""Other methods for the same task, one file each, behind one function: ``recover(name, Y, mask)``.

Tensor and matrix methods of the literature, written from their equations or taken from TensorLy and pyttb, to be
compared with :class:`brtf.BRTF` on the same data. No method sees the truth: starts, ranks and weights are chosen from
the observed entries or given by the caller.
"""

from brtf.research.baselines.registry import Method, Recovery, describe, names, recover

__all__ = ["Method", "Recovery", "describe", "names", "recover"]
