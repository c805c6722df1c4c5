"""Figures of each step: what an engine's listeners get, as docs/metrics.md describes it."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from zerorun.metrics.fields import FIELDS, Field, markdown
from zerorun.metrics.files import MetricsFile, rank_path
from zerorun.metrics.progress import ProgressLines

if TYPE_CHECKING:
    from zerorun.metrics.collectives import CollectiveTable, log_summary
    from zerorun.metrics.meter import StepMeter

__all__ = [
    "FIELDS",
    "CollectiveTable",
    "Field",
    "MetricsFile",
    "ProgressLines",
    "StepMeter",
    "log_summary",
    "markdown",
    "rank_path",
]

# Names that need PyTorch, which a reader of files does without, and where they are.
_LAZY = {
    "CollectiveTable": "zerorun.metrics.collectives",
    "StepMeter": "zerorun.metrics.meter",
    "log_summary": "zerorun.metrics.collectives",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'zerorun.metrics' has no attribute '{name}'")
    value = getattr(importlib.import_module(_LAZY[name]), name)
    globals()[name] = value
    return value
