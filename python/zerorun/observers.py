"""The observers that a configuration asks for, added to its engine."""

from __future__ import annotations

import json
import platform
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from zerorun import _C
from zerorun.engine import ZeroEngine
from zerorun.metrics.meter import StepMeter
from zerorun.program_warning import logger

if TYPE_CHECKING:
    from zerorun.metrics.printed import CollectiveTable


_TRACED = (2, 4)  # steps, unless the configuration names others


def _section(values: dict[str, Any], name: str) -> dict[str, Any]:
    """The settings of a section; what is null has its default."""
    prefix = f"/{name}/"
    return {
        key.removeprefix(prefix): value
        for key, value in values.items()
        if key.startswith(prefix) and value is not None
    }


def observe(engine: ZeroEngine, parsed: _C.ParsedConfig) -> bool:
    """Adds the listeners that the configuration asks for. True if they need measure_peak().

    ConfigError or OSError for what cannot be had, on the rank where it is.
    """
    from zerorun.monitor import SECTIONS, MonitorMaster, step_events

    found = {value.pointer: json.loads(value.value) for value in parsed.values}
    rank, add = engine._ranks.job.rank, engine._meter.add_listener
    profile = _section(found, "flops_profiler")
    breakdown = parsed.config.wall_clock_breakdown or bool(profile.get("enabled"))
    table = _table(engine, _section(found, "comms_logger"))
    if table is not None:
        add(table)
    trace = _section(found, "zerorun/trace")
    if trace.get("file"):
        steps = trace.get("steps") or _TRACED
        add(Timeline(engine._core, engine._meter, trace["file"], steps))
    path = found.get("/zerorun/metrics")
    if path:
        from zerorun.metrics.files import MetricsFile

        run = _description(engine, parsed.values)
        add(MetricsFile(path, rank, engine._ranks.job.world_size, run))
    engine.monitor = MonitorMaster({name: _section(found, name) for name in SECTIONS}, rank)
    if rank > 0:
        return bool(path)
    if engine.monitor.enabled:
        precision = parsed.config.precision
        scaled = precision.param_dtype == "fp16" or precision.scales_loss

        def report(metrics: dict[str, Any]) -> None:
            engine.monitor.write_events(step_events(metrics, loss_scale=scaled, times=breakdown))

        add(report)
    if parsed.config.steps_per_print is not None or breakdown:
        from zerorun.metrics.printed import ProgressLines

        add(ProgressLines(parsed.config.steps_per_print, breakdown, lambda: _momenta(engine)))
    if profile.pop("enabled", False):
        from zerorun.profiling import FlopsProfile

        engine.flops_profile = FlopsProfile.during(engine, **profile)
    return bool(path)


def _table(engine: ZeroEngine, section: dict[str, Any]) -> CollectiveTable | None:
    if not section.get("enabled"):
        return None
    from zerorun.metrics.printed import CollectiveTable

    ops = None if section.get("prof_all", True) else section.get("prof_ops") or []
    return CollectiveTable(
        engine._meter.figures,
        engine._ranks.job,
        ops,
        bool(section.get("verbose")),
        bool(section.get("debug")),
    )


def _momenta(engine: ZeroEngine) -> list[Any]:
    groups = engine.optimizer.param_groups if engine.optimizer is not None else []
    return [group.get("betas", group.get("momentum", 0.0)) for group in groups]


def _description(engine: ZeroEngine, values: list[_C.ConfigValue]) -> dict[str, Any]:
    """A metrics file's head: the run's configuration and environment."""
    settings = [
        [value.pointer, json.loads(value.value), bool(value.is_default)] for value in values
    ]
    return {
        "config": settings,
        "environment": {
            "zerorun": _C.__version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "system": platform.platform(),
            "host": platform.node(),
            "device": str(next((p.device for p in engine.module.parameters()), "cpu")),
            "threads": torch.get_num_threads(),
        },
        "parameters": sum(getattr(p, "ds_numel", p.numel()) for p in engine.module.parameters()),
        "plan": engine._meter.figures.memory_plan(),
        "limits": engine._meter.figures.collective_limits(),
    }


class Timeline:
    """A listener that writes the steps from `steps[0]` to `steps[1]`, counted from 1, into a file
    on rank 0. Collective in the last of these steps, when the ranks' parts come together."""

    def __init__(self, core: _C.Engine, meter: StepMeter, file: str, steps: Sequence[int]) -> None:
        if len(steps) != 2 or steps[0] > steps[1]:
            raise _C.ConfigError(
                f"/zerorun/trace/steps: got {list(steps)}, expected the first and the last step"
            )
        self._last = steps[1]
        self._clocks = (meter.forward, meter.backward)
        self._core = _C.Timeline(core, file, *steps)
        self._keep_spans()
        self._warning = weakref.finalize(self, _warn, file, steps[1])

    def _keep_spans(self) -> None:
        for clock in self._clocks:
            clock.spans = [] if self._core.is_recording else None

    def __call__(self, metrics: dict[str, Any]) -> None:
        for clock in self._clocks:
            for span in clock.spans or []:
                self._core.add(*span)
        step = metrics["step"]
        if step >= self._last:
            self._warning.detach()
        line = self._core.end_step(step)
        self._keep_spans()
        if line:
            logger.info("%s", line)


def _warn(file: str, last: int) -> None:
    logger.warning(
        "the timeline %s was not written: training ended before step %d, the last of "
        "/zerorun/trace/steps",
        file,
        last,
    )
