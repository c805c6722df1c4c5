"""DeepSpeed's profiler of floating point operations on zerorun's."""

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

import torch
from torch import nn
from zerorun import profiling

DEFAULT_PRECISION = 2
# DeepSpeed's counts of the modules that are running; zerorun's are in FlopsProfile.
module_flop_count: list[Any] = []
module_mac_count: list[Any] = []


def number_to_string(num: float, units: str | None = None, precision: int = 2) -> str:
    """12,600,000 as "12.6 M"; `units`: "T", "G", "M", "K" or "" instead of the one that fits."""
    return _in_units(num, units, "", precision)


def flops_to_string(flops: float, units: str | None = None, precision: int = 2) -> str:
    return _in_units(flops, units, "FLOPS", precision)


def macs_to_string(macs: float, units: str | None = None, precision: int = 2) -> str:
    return _in_units(macs, units, "MACs", precision)


def bytes_to_string(b: float, units: str | None = None, precision: int = 2) -> str:
    return _in_units(b, units, "B", precision)


def params_to_string(params_num: float, units: str | None = None, precision: int = 2) -> str:
    return number_to_string(params_num, units, precision).replace("G", "B")


def duration_to_string(duration: float, units: str | None = None, precision: int = 2) -> str:
    """Seconds as text, in "s", "ms" or "us"."""
    sizes = {"s": 1.0, "ms": 1e-3, "us": 1e-6}
    if units is None:
        return profiling.seconds_text(duration)
    return f"{round(duration / sizes[units], precision)} {units}"


def _in_units(value: float, units: str | None, what: str, precision: int) -> str:
    if units is None:
        return profiling.number_text(value, what, precision)
    sizes = {"P": 1e15, "T": 1e12, "G": 1e9, "B": 1e9, "M": 1e6, "K": 1e3}
    size = sizes.get(units.strip()[:1].upper(), 1.0)
    return f"{round(value / size, precision):g} {units}{what}".rstrip()


def _total(figure: str, text: Callable[[float], str]) -> Callable[..., Any]:
    """A method that returns a figure of the whole model."""

    def get(self: Any, as_string: bool = False) -> Any:
        if figure != "parameters":  # which are known from the start
            self.stop_profile()
        found = getattr(self._profile.total, figure)
        return text(found) if as_string else found

    return get


class FlopsProfiler:
    """Profiles what a model does between start_profile() and stop_profile()."""

    def __init__(
        self, model: nn.Module, ds_engine: Any = None, recompute_fwd_factor: float = 0.0
    ) -> None:
        self.model, self.ds_engine = model, ds_engine
        self.recompute_fwd_factor = recompute_fwd_factor
        self.started = False
        self._profile = getattr(ds_engine, "flops_profile", None) or profiling.FlopsProfile(model)

    flops = property(attrgetter("_profile.total.flops"))
    macs = property(attrgetter("_profile.total.macs"))
    params = property(attrgetter("_profile.total.parameters"))

    def start_profile(self, ignore_list: Sequence[type[nn.Module]] | None = None) -> None:
        self._profile = profiling.FlopsProfile(self.model, tuple(ignore_list or ()))
        self._profile.start()
        self.started = True

    def stop_profile(self) -> None:
        self._profile.stop()

    def end_profile(self) -> None:
        self.stop_profile()
        self.started = False

    def reset_profile(self) -> None:
        self.start_profile()

    get_total_flops = _total("flops", number_to_string)
    get_total_macs = _total("macs", macs_to_string)
    get_total_duration = _total("seconds", duration_to_string)
    get_total_params = _total("parameters", params_to_string)

    def print_model_profile(
        self,
        profile_step: int = 1,
        module_depth: int = -1,
        top_modules: int = 1,
        detailed: bool = True,
        output_file: str | None = None,
    ) -> None:
        """Prints each module's share, or writes it into `output_file`."""
        if not self.started:
            return
        self.stop_profile()
        costs, facts, engine = self._profile.costs, {}, self.ds_engine
        if engine is not None:
            data = engine.dp_world_size or engine.seq_dp_world_size
            batch = engine.train_micro_batch_size_per_gpu()
            sizes = engine.world_size, data, engine.mp_world_size, batch
            facts = dict(zip(profiling.SIZES, sizes, strict=True))
        text = profiling.profile_text(
            costs, profile_step, module_depth, top_modules, detailed, facts
        )
        profiling.write_profile(text, output_file)

    def print_model_aggregated_profile(self, module_depth: int = -1, top_modules: int = 1) -> None:
        self.stop_profile()
        print(profiling.profile_text(self._profile.costs, 1, module_depth, top_modules, False))


def get_model_profile(  # noqa: PLR0913, PLR0917 - DeepSpeed's signature
    model: nn.Module,
    input_shape: tuple[int, ...] | None = None,
    args: Sequence[Any] = (),
    kwargs: dict[str, Any] | None = None,
    print_profile: bool = True,
    detailed: bool = True,
    module_depth: int = -1,
    top_modules: int = 1,
    warm_up: int = 1,
    as_string: bool = True,
    output_file: str | None = None,
    ignore_modules: Sequence[type[nn.Module]] | None = None,
    mode: str = "forward",
) -> tuple[Any, Any, Any]:
    """(flops, MACs, parameters) of one forward pass, or of `mode` "generate".

    `input_shape`: of the only argument, whose values do not matter; else give `args` or `kwargs`.
    The model is in evaluation mode afterwards.
    """
    if mode not in {"forward", "generate"}:
        raise ValueError(f"mode: got {mode!r}, expected 'forward' or 'generate'")
    model.eval()
    if input_shape is not None:
        like = next(model.parameters(), torch.empty(0))
        args = [torch.zeros(input_shape, dtype=like.dtype, device=like.device)]
    if not args and not kwargs:
        raise AssertionError("args and/or kwargs must be specified if input_shape is None")
    ignore = tuple(ignore_modules or ())
    made = profiling.profile_model(model, args, kwargs, method=mode, warm_up=warm_up, ignore=ignore)
    profiler = FlopsProfiler(model)
    profiler._profile, profiler.started = made, True
    if print_profile:
        profiler.print_model_profile(warm_up, module_depth, top_modules, detailed, output_file)
    return (
        profiler.get_total_flops(as_string),
        profiler.get_total_macs(as_string),
        profiler.get_total_params(as_string),
    )
