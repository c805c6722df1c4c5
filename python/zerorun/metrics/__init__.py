"""Figures of each step: what an engine's listeners get, as docs/metrics.md describes it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zerorun.lazy_names import lazy_names

if TYPE_CHECKING:
    from zerorun.metrics.fields import FIELDS, Field, markdown
    from zerorun.metrics.files import MetricsFile, rank_path
    from zerorun.metrics.meter import StepMeter
    from zerorun.metrics.printed import CollectiveTable, ProgressLines, log_summary

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

# Some need PyTorch, which a reader of files does without.
__getattr__ = lazy_names(
    __name__,
    {
        "metrics.printed": "CollectiveTable ProgressLines log_summary",
        "metrics.fields": "FIELDS Field markdown",
        "metrics.files": "MetricsFile rank_path",
        "metrics.meter": "StepMeter",
    },
)
