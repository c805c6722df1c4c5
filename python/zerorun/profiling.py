"""FlopsProfile: parameters, floating point operations and time of each module's forward pass, and
their text."""

import functools
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from zerorun.flops import listen, recurrent_flops, unlisten
from zerorun.whole_file import write_text


class FlopsProfile:
    """Counts what runs in a model's modules between :meth:`start` and :meth:`stop`.

    What counts is in :mod:`zerorun.flops`. Times are waited for at each module, so a profiled step
    is slower than others.
    """

    def __init__(self, model: nn.Module, ignore: Sequence[type[nn.Module]] = ()) -> None:
        self.model = model
        self.costs: dict[str, ModuleCost] = {}
        self.running = False
        self._ignore = tuple(ignore)
        self._hooks: list[Any] = []
        self._own: dict[str, list[int]] = {}  # without that of the modules below
        self._entered: list[tuple[str, float]] = []

    def start(self) -> None:
        """Counts from here on, anew. Not within a call of the model."""
        self.stop()
        self.costs = {
            name: ModuleCost(name, type(module).__name__)
            for name, module in self.model.named_modules()
            if not isinstance(module, self._ignore)
        }
        self._own = {name: [0, 0] for name in self.costs}
        for name, module in self.model.named_modules():
            if name in self.costs:
                sizes = (getattr(p, "ds_numel", p.numel()) for p in module.parameters())
                self.costs[name].parameters = sum(sizes)
                self._hooks += [
                    module.register_forward_pre_hook(self._enter(name), prepend=True),
                    module.register_forward_hook(self._leave(name), always_call=True),
                ]
        listen(self._count)
        self.running = True

    def stop(self) -> None:
        """Ends the counting; `costs` has its results."""
        if not self.running:
            return
        self.running = False
        unlisten(self._count)
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        self._entered.clear()
        names = {module: name for name, module in self.model.named_modules()}
        for module, name in names.items():
            if name in self.costs:
                below = [self._own.get(names[part], (0, 0)) for part in module.modules()]
                cost = self.costs[name]
                cost.flops, cost.macs = (sum(counts) for counts in zip(*below, strict=True))

    @property
    def total(self) -> "ModuleCost":
        return self.costs.get("", ModuleCost("", type(self.model).__name__))

    def _count(self, flops: int, macs: int) -> None:
        if self._entered:
            own = self._own[self._entered[-1][0]]
            own[0] += flops
            own[1] += macs

    # Copies of the model share its hooks: a deep copy takes functions as they are.
    def _enter(self, name: str) -> Callable[..., None]:
        def hook(*_: Any) -> None:
            self._entered.append((name, _now()))

        return hook

    def _leave(self, name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Any, ...], *_: Any) -> None:
            if args:
                self._own[name][0] += recurrent_flops(module, args[0])
            while self._entered:  # what an exception left is above it
                entered, begun = self._entered.pop()
                if entered == name:
                    self.costs[name].seconds += _now() - begun
                    break

        return hook

    @classmethod
    def during(  # noqa: PLR0913, PLR0917 - keys of the configuration
        cls,
        engine: Any,
        profile_step: int = 1,
        module_depth: int = -1,
        top_modules: int = 1,
        detailed: bool = True,
        output_file: str | None = None,
        recompute_fwd_factor: float = 0.0,
    ) -> "FlopsProfile":
        """Profiles the first micro-step after `profile_step` steps of an engine, and writes the
        result with that step's figures. The keys of ``flops_profiler``."""
        profile = cls(engine.module)
        hooks: list[Any] = []

        def before(*_: Any) -> None:
            if engine.global_steps == profile_step and engine.training and not profile.costs:
                profile.start()

        def after(*_: Any) -> None:
            if profile.running:
                profile.stop()
                engine._meter.work.count_forward(2 * profile.total.macs)

        def report(metrics: dict[str, Any]) -> None:
            if metrics["step"] <= profile_step:
                return
            for hook in hooks:
                hook.remove()
            engine._meter.listeners.remove(report)
            batch = engine.batch
            facts = metrics | {
                "world size": engine.communicator.world_size,
                "batch size per GPU": batch.micro_batch_size,
                "micro_steps": batch.accumulation_steps,
                "recompute": recompute_fwd_factor,
            }
            text = profile_text(
                profile.costs, profile_step, module_depth, top_modules, detailed, facts
            )
            write_profile(text, output_file)

        hooks.append(engine.register_forward_pre_hook(before))
        hooks.append(engine.register_forward_hook(after, always_call=True))
        engine._meter.add_listener(report)
        return profile


def _now() -> float:
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()
    return time.perf_counter()


def write_profile(text: str, output_file: str | None) -> None:
    """Prints it, unless there is a file for it."""
    if not output_file:
        print(text, file=sys.stdout, flush=True)
        return
    path = Path(output_file)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, text + "\n")


def profile_model(
    model: nn.Module,
    args: Iterable[Any] = (),
    kwargs: dict[str, Any] | None = None,
    *,
    method: str = "forward",
    warm_up: int = 1,
    ignore: Sequence[type[nn.Module]] = (),
) -> FlopsProfile:
    """Profiles one call of a model after `warm_up` others, without gradients.

    `method`: "forward", or the name of another method, as "generate".
    """
    call = model if method == "forward" else getattr(model, method)
    given, named = tuple(args), kwargs or {}
    profile = FlopsProfile(model, ignore)
    with torch.no_grad():
        for _ in range(warm_up):
            call(*given, **named)
        profile.start()
        try:
            call(*given, **named)
        finally:
            profile.stop()
    return profile


# --- the text, in the order of DeepSpeed's ---

_UNITS = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "K"))
SIZES = ("world size", "data parallel size", "model parallel size", "batch size per GPU")


@dataclass
class ModuleCost:
    """One module, with all that is below it."""

    name: str  # empty: the model itself
    kind: str
    parameters: int = 0
    flops: int = 0
    macs: int = 0  # multiply-adds
    seconds: float = 0.0

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
    lines = [_line(size, str(facts[size])) for size in SIZES if size in facts]
    lines += [
        _line("params", number_text(total.parameters)),
        _line("fwd MACs per GPU", number_text(total.macs, "MACs")),
        _line("fwd flops per GPU", number_text(total.flops)),
        _line("fwd latency", seconds_text(total.seconds)),
        _line("fwd FLOPS per GPU = fwd flops per GPU / fwd latency", _rate(total)),
    ]
    backward = facts.get("backward_ms")
    if backward:
        factor = 2 + facts["recompute"]  # times the forward pass's operations
        one = backward / facts["micro_steps"] / 1e3
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
        macs_text: Callable[[float], str] = functools.partial(number_text, unit="MACs")
        shown = (("params", number_text), ("MACs", macs_text), ("fwd latency", seconds_text))
        for i, (name, text) in enumerate(shown):
            best = sorted(((sums[i], kind) for kind, sums in kinds.items()), reverse=True)[:top]
            lines.append(f"    {name:<12}- { ({kind: text(value) for value, kind in best}) }")
    return lines


def _share(part: float, whole: float) -> str:
    return f"{100.0 * part / whole:.2f}%" if whole > 0 else "0%"


def _detail(cost: ModuleCost, total: ModuleCost) -> str:
    what = ", ".join(
        (
            number_text(cost.parameters),
            f"{_share(cost.parameters, total.parameters)} Params",
            number_text(cost.macs, "MACs"),
            f"{_share(cost.macs, total.macs)} MACs",
            seconds_text(cost.seconds),
            f"{_share(cost.seconds, total.seconds)} latency",
            _rate(cost),
        )
    )
    indent = "  " * cost.depth
    name = cost.name.rpartition(".")[2]
    return f"{indent}({name}): {cost.kind} = {what}" if name else f"{cost.kind} = {what}"
