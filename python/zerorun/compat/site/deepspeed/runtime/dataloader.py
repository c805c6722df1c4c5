"""Data loaders."""

from zerorun.dataloader import RepeatingLoader, make_dataloader

__all__ = ["RepeatingLoader", "make_dataloader"]
