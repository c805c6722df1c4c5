"""The page: one file with its figures, its program and its style inside."""

from __future__ import annotations

import html as escape
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from zerorun import _C
from zerorun.metrics.files import plain
from zerorun.report.findings import breakdown, findings
from zerorun.report.reader import Run

__all__ = ["data_of", "html"]

_ASSETS = Path(__file__).parent / "assets"
_ADAMS = {"adam", "adamw"}
_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}


def planned_bytes(run: Run) -> int | None:
    """Model states of a rank as the ZeRO paper has them; None where the formula does not fit:
    offloading, other optimizers than Adam's, or an unknown number of parameters."""
    count, ranks = run.about.get("parameters"), run.world_size
    zero = "/zero_optimization/"
    offloads = any(
        run.setting(f"{zero}{what}/device", "none") not in {None, "none"}
        for what in ("offload_optimizer", "offload_param")
    )
    kind = str(run.setting("/optimizer/type", "adamw")).lower()
    stage = run.setting(f"{zero}stage", 0) or 0
    if not isinstance(count, int) or not isinstance(stage, int) or not ranks:
        return None
    if offloads or kind not in _ADAMS:
        return None
    sixteen = any(run.setting(f"/{name}/enabled") is True for name in ("bf16", "fp16"))
    width = _BYTES["bf16" if sixteen else "fp32"]
    accumulates = (run.setting("/gradient_accumulation_steps", 1) or 1) != 1
    gradient = 4 if accumulates else width
    optimizer = 12 if sixteen else 8  # fp32 parameters are their own masters
    shards = [ranks if stage >= least else 1 for least in (3, 2, 1)]
    parts = zip((width, gradient, optimizer), shards, strict=True)
    return int(sum(count * nbytes / over for nbytes, over in parts))


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
        "planned": planned_bytes(run),
        "parameters": run.about.get("parameters"),
        "environment": environment if isinstance(environment, dict) else {},
        "config": run.settings,
        "param_hash": run.param_hash,
        "timeline": run.timeline,
    }


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
