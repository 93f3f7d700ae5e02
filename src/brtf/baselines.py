"""Other methods for the same task, one file each, called alike: ``recover(name, Y, mask)``."""

from brtf.research.baselines import Method, Recovery, describe, names, recover

__all__ = ["Method", "Recovery", "describe", "names", "recover"]
