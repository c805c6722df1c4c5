"""Figures with a target, and whether they reach it."""

from __future__ import annotations

__all__ = ["Targets"]


class Targets:
    """Prints figures, and remembers whether all that have a target reach it."""

    def __init__(self, targets: dict[str, float]) -> None:
        self.targets = targets
        self.missed = False

    def show(self, text: str, value: float, name: str, most: bool = False) -> None:
        target = self.targets[name]
        missed = value > target if most else value < target
        self.missed |= missed
        bound = f"{'at most' if most else 'at least'} {target}"
        verdict = "MISSED" if missed else "met"
        print(f"{text}: {value:.2f} (target {bound}: {verdict})", flush=True)
