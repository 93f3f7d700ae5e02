"""Other methods for the same task, behind one function: ``recover(name, Y, mask)``."""

from brtf.research.baselines import Method, Recovery, describe, names, recover

__all__ = ["Method", "Recovery", "describe", "names", "recover"]
