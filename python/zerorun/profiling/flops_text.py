"""The text of a FlopsProfile, in the order of DeepSpeed's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

_UNITS = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "K"))
_BACKWARD = 2  # times the forward pass's operations


@dataclass
class ModuleCost:
    """One module, with all that is below it."""

    name: str  # empty: the model itself
    kind: str
    parameters: int = 0
    flops: int = 0
    seconds: float = 0.0

    @property
    def macs(self) -> int:
        return self.flops // 2

    @property
    def depth(self) -> int:
        return len(self.name.split(".")) if self.name else 0


def number_text(value: float, unit: str = "", digits: int = 2) -> str:
    """12,600,000 as "12.6 M"."""
    for size, name in _UNITS:
        if abs(value) >= size:
            return f"{round(value / size, digits):g} {name}{unit}"
    return f"{round(value, digits):g} {unit}".rstrip()


def seconds_text(seconds: float) -> str:
    for size, name in ((1.0, "s"), (1e-3, "ms")):
        if seconds >= size:
            return f"{seconds / size:.2f} {name}"
    return f"{seconds * 1e6:.2f} us"


def profile_text(
    costs: dict[str, Any],
    step: int,
    depth: int,
    top: int,
    detailed: bool,
    facts: dict[str, Any] | None = None,
) -> str:
    """`depth`: of the aggregated part, -1: the deepest; `top`: modules per depth; `facts`: figures
    of the whole step, where a training was profiled."""
    if not costs:
        return (
            f"Flops profile: nothing ran through the engine in step {step}; call the engine "
            "itself, not its module"
        )
    parts = [
        "-------------------------- Flops Profile --------------------------",
        f"Profile Summary at step {step}:",
        *_summary(costs[""], facts or {}),
        "",
        "----------------------------- Aggregated Profile per GPU -----------------------------",
        *_aggregated(costs, depth, top),
    ]
    if detailed:
        parts += [
            "",
            "----------------------------- Detailed Profile per GPU -----------------------------",
            "Each module, with all that is below it: parameters, share of parameters, MACs, share "
            "of MACs, forward latency, share of latency, FLOPS",
            *(_detail(cost, costs[""]) for cost in costs.values()),
        ]
    return "\n".join(parts)


def _line(name: str, value: str) -> str:
    return f"{name + ':':<60}{value}"


def _summary(total: ModuleCost, facts: dict[str, Any]) -> list[str]:
    lines = []
    if facts:
        lines += [
            _line("world size", str(facts["ranks"])),
            _line("batch size per GPU", str(facts["batch"].micro_batch_size)),
        ]
    lines += [
        _line("params", number_text(total.parameters)),
        _line("fwd MACs per GPU", number_text(total.macs, "MACs")),
        _line("fwd flops per GPU", number_text(total.flops)),
        _line("fwd latency", seconds_text(total.seconds)),
        _line("fwd FLOPS per GPU = fwd flops per GPU / fwd latency", _rate(total)),
    ]
    backward = facts.get("backward_ms")
    if backward:
        factor = _BACKWARD + facts["recompute"]
        micro_steps = facts["batch"].accumulation_steps
        one = backward / micro_steps / 1e3
        rate = number_text(factor * total.flops / one, "FLOPS")
        lines += [
            _line("bwd latency", seconds_text(one)),
            _line(f"bwd FLOPS per GPU = {factor:g} * fwd flops per GPU / bwd latency", rate),
        ]
    if facts.get("optimizer_ms") is not None:
        lines += [
            _line("step latency", seconds_text(facts["optimizer_ms"] / 1e3)),
            _line("iter latency", seconds_text(facts["step_ms"] / 1e3)),
            _line("samples/second", f"{facts['samples_per_s']:.2f}"),
        ]
    return lines


def _rate(cost: ModuleCost) -> str:
    return number_text(cost.flops / cost.seconds, "FLOPS") if cost.seconds > 0 else "unknown"


def _aggregated(costs: dict[str, ModuleCost], depth: int, top: int) -> list[str]:
    deepest = max(cost.depth for cost in costs.values())
    depth = deepest if depth < 0 else min(depth, deepest)
    lines = [
        f"Top {top} modules in terms of params, MACs or fwd latency at different model depths:"
    ]
    for level in range(depth + 1):
        kinds: dict[str, list[float]] = {}
        for cost in costs.values():
            if cost.depth == level:
                sums = kinds.setdefault(cost.kind, [0.0, 0.0, 0.0])
                for i, value in enumerate((cost.parameters, cost.macs, cost.seconds)):
                    sums[i] += value
        lines.append(f"depth {level}:")
        shown = (("params", number_text), ("MACs", _macs_text), ("fwd latency", seconds_text))
        for i, (name, text) in enumerate(shown):
            best = sorted(((sums[i], kind) for kind, sums in kinds.items()), reverse=True)[:top]
            lines.append(f"    {name:<12}- { ({kind: text(value) for value, kind in best}) }")
    return lines


def _macs_text(value: float) -> str:
    return number_text(value, "MACs")


def _share(part: float, whole: float) -> str:
    return f"{100.0 * part / whole:.2f}%" if whole > 0 else "0%"


def _detail(cost: ModuleCost, total: ModuleCost) -> str:
    what = ", ".join(
        (
            number_text(cost.parameters),
            f"{_share(cost.parameters, total.parameters)} Params",
            _macs_text(cost.macs),
            f"{_share(cost.macs, total.macs)} MACs",
            seconds_text(cost.seconds),
            f"{_share(cost.seconds, total.seconds)} latency",
            _rate(cost),
        )
    )
    indent = "  " * cost.depth
    name = cost.name.rpartition(".")[2]
    return f"{indent}({name}): {cost.kind} = {what}" if name else f"{cost.kind} = {what}"
