"""The page: one file with its figures, its program and its style inside."""

from __future__ import annotations

import html as escape
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from zerorun import _C
from zerorun.metrics.files import is_figure, plain
from zerorun.report.findings import breakdown, findings
from zerorun.report.reader import Run

_ASSETS = Path(__file__).parent / "assets"


def data_of(runs: Sequence[Run], live: bool = False) -> dict[str, Any]:
    """The contents of the page."""
    return {"live": live, "version": _C.__version__, "runs": [plain(_run(run)) for run in runs]}


def _run(run: Run) -> dict[str, Any]:
    columns, environment = run.first.columns, run.about.get("environment")
    return {
        "name": run.name,
        "steps": columns.steps,
        "columns": columns.table(),
        "skipped": columns.skipped,
        "breakdown": breakdown(run),
        "findings": findings(run),
        "collectives": run.first.collectives,
        "ranks": [
            {
                "rank": rank,
                "memory": figures.memory,
                "peak_rss": figures.peak_rss,
                "model_state": figures.columns.mean("model_state_bytes"),
                "step_ms": figures.columns.mean("step_ms", 2),
                "comm_ms": figures.columns.mean("comm_ms", 2),
            }
            for rank, figures in sorted(run.ranks.items())
        ],
        "world_size": run.world_size,
        "plan": _figures(run.about.get("plan")),
        "limits": _figures(run.about.get("limits")),
        "parameters": run.about.get("parameters"),
        "environment": environment if isinstance(environment, dict) else {},
        "config": run.settings,
        "param_hash": run.param_hash,
        "timeline": run.timeline,
    }


def _figures(given: object) -> dict[str, float]:
    found = given if isinstance(given, dict) else {}
    return {str(name): value for name, value in found.items() if is_figure(value)}


def html(runs: Sequence[Run], live: bool = False) -> str:
    """The page of some runs. `live`: it asks its server for news."""
    data = json.dumps(data_of(runs, live), separators=(",", ":"), allow_nan=False)
    parts = {
        "TITLE": escape.escape(", ".join(run.name for run in runs)),
        "STYLE": _asset("uplot.min.css") + _asset("page.css"),
        "UPLOT": _asset("uplot.iife.min.js"),
        "PROGRAM": _asset("page.js"),
        # Nothing in the data can end the script that holds it.
        "DATA": data.replace("<", "\\u003c").replace("\u2028", "\\u2028"),
    }
    return re.sub("@([A-Z]+)@", lambda found: parts[found[1]], _asset("page.html"))


def _asset(name: str) -> str:
    return (_ASSETS / name).read_text(encoding="utf-8")
