"""FlopsProfile: parameters, floating point operations and time of each module's forward pass."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

from zerorun.profiling.flops_text import ModuleCost, profile_text
from zerorun.whole_file import write_text


def _attention_flops(q: Any, k: Any, v: Any, *_: Any, out_shape: Any = None, **__: Any) -> int:
    return sdpa_flop_count(q, k, v)


def _vector_flops(left: Any, *_: Any, out_shape: Any = None, **__: Any) -> int:
    return 2 * left.numel()


# The operations that PyTorch's counter leaves out: products with a vector, attention of CPUs.
_UNKNOWN = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _attention_flops,
    torch.ops.aten.dot: _vector_flops,
    torch.ops.aten.mv: _vector_flops,
}


class FlopsProfile:
    """Counts what runs between :meth:`start` and :meth:`stop`.

    FLOPs are those that PyTorch's own counter knows: products of matrices, convolutions and
    attention, two per multiply-add; element-wise operations are not counted. Times are waited for
    at each module, so a profiled step is slower than others.
    """

    def __init__(self, model: nn.Module, ignore: Sequence[type[nn.Module]] = ()) -> None:
        self.model = model
        self.costs: dict[str, ModuleCost] = {}
        self.running = False
        self._ignore = tuple(ignore)
        self._hooks: list[Any] = []
        self._counter = FlopCounterMode(display=False)
        self._begun: dict[str, list[float]] = {}

    def start(self) -> None:
        """Counts from here on, anew. Not within a call of the model."""
        self.costs = {
            name: ModuleCost(name, type(module).__name__, _parameters_of(module))
            for name, module in self.model.named_modules()
            if not isinstance(module, self._ignore)
        }
        for name, module in self.model.named_modules():
            if name in self.costs:
                self._hooks += [
                    module.register_forward_pre_hook(self._enter(name), prepend=True),
                    module.register_forward_hook(self._leave(name), always_call=True),
                ]
        self._counter = FlopCounterMode(display=False, custom_mapping=_UNKNOWN)
        self._counter.__enter__()
        self.running = True

    def stop(self) -> None:
        """Ends the counting; `costs` has its results."""
        if not self.running:
            return
        self.running = False
        self._counter.__exit__(None, None, None)
        for hook in self._hooks:
            hook.remove()
        counts = self._counter.get_flop_counts()
        self._hooks.clear()
        root = type(self.model).__name__
        for name, cost in self.costs.items():
            found = counts.get(f"{root}.{name}" if name else root, {})
            cost.flops = int(sum(found.values()))
        if self.costs and "" in self.costs and self._ignore:
            self.costs[""].flops -= self._ignored(counts, root)

    def _ignored(self, counts: dict[str, Any], root: str) -> int:
        names = [n for n, m in self.model.named_modules() if isinstance(m, self._ignore)]
        top = [n for n in names if not any(n.startswith(f"{other}.") for other in names)]
        return sum(int(sum(counts.get(f"{root}.{name}", {}).values())) for name in top)

    @property
    def total(self) -> ModuleCost:
        return self.costs.get("", ModuleCost("", type(self.model).__name__))

    def _enter(self, name: str) -> Callable[..., None]:
        def hook(*_: Any) -> None:
            self._begun.setdefault(name, []).append(_now())

        return hook

    def _leave(self, name: str) -> Callable[..., None]:
        def hook(*_: Any) -> None:
            begun = self._begun.get(name)
            if begun:
                self.costs[name].seconds += _now() - begun.pop()

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
    ) -> FlopsProfile:
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
                engine._meter.work.count_forward(profile.total.flops)

        def report(metrics: dict[str, Any]) -> None:
            if metrics["step"] <= profile_step:
                return
            for hook in hooks:
                hook.remove()
            engine._meter.listeners.remove(report)
            facts = metrics | {
                "ranks": engine.communicator.world_size,
                "batch": engine.batch,
                "recompute": recompute_fwd_factor,
            }
            text = profile_text(
                profile.costs, profile_step, module_depth, top_modules, detailed, facts
            )
            _write(text, output_file)

        hooks.append(engine.register_forward_pre_hook(before))
        hooks.append(engine.register_forward_hook(after, always_call=True))
        engine._meter.add_listener(report)
        return profile


def _parameters_of(module: nn.Module) -> int:
    return sum(getattr(p, "ds_numel", p.numel()) for p in module.parameters())


def _now() -> float:
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()
    return time.perf_counter()


def _write(text: str, output_file: str | None) -> None:
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
