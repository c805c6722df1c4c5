"""One page about one or several runs, made of their metrics files (`python -m zerorun.report`)."""

from zerorun.report.page import html
from zerorun.report.reader import Run, read_run

__all__ = ["Run", "html", "read_run"]
