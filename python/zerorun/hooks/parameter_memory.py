"""A model's parameters in an engine's memory: views of it, and new values."""

from collections.abc import Iterator

import torch
import torch.utils.dlpack
from torch import nn

from zerorun import _C
from zerorun.model.model_layout import ModelLayout

# After so many changed elements, those that are stored in files are written back.
_MAX_CHANGED = 1 << 22


def tensor_of(capsule: object) -> torch.Tensor:
    """The memory behind a DLPack capsule, without a copy."""
    return torch.utils.dlpack.from_dlpack(capsule)


def full_view(engine: _C.Engine, layout: ModelLayout, parameter: nn.Parameter) -> torch.Tensor:
    """The full parameter in the engine's memory, in its shape."""
    return layout.shaped(parameter, tensor_of(engine.parameter(layout.ids[parameter])))


def by_parameter(engine: _C.Engine) -> dict[int, list[_C.StateInterval]]:
    """This rank's intervals by parameter id."""
    intervals: dict[int, list[_C.StateInterval]] = {}
    for interval in engine.state_intervals():
        intervals.setdefault(interval.parameter, []).append(interval)
    return intervals


def state_names_of(engine: _C.Engine, index: int) -> list[str]:
    """The states of a rule of the core's with an element for each of the parameter's."""
    return [name for name in engine.state_names(index) if not name.endswith("_scale")]


def states_of(engine: _C.Engine, interval: _C.StateInterval) -> dict[str, torch.Tensor]:
    """An interval's states of a rule of the core's, by name."""
    names = engine.state_names(interval.parameter)
    return dict(zip(names, map(tensor_of, interval.states), strict=True))


def to_write(engine: _C.Engine, layout: ModelLayout) -> Iterator[nn.Parameter]:
    """Every parameter, for the caller to change this rank's part of it.

    Changes to parameters that are stored in files are written back in between, so that few of them
    are in memory at a time. Collective.
    """
    changed = 0
    for parameter in layout.names:
        yield parameter
        changed += layout.shapes[parameter].numel()
        if changed >= _MAX_CHANGED:
            engine.accept_changes()
            changed = 0


def write_full(engine: _C.Engine, index: int, flat: torch.Tensor) -> None:
    """Writes new full values of one parameter, as ModelLayout.flat has them and the same on every
    rank, into this rank's part of it and of its master. Collective.
    """
    engine.accept_changes()
    with torch.no_grad():
        if not engine.is_sharded(index):
            tensor_of(engine.parameter(index)).copy_(flat)
        stays_precise = take_written(engine, index)
        for interval in engine.state_intervals(index):
            if stays_precise:
                keep_precise(interval, tensor_of(interval.master))
                continue
            part = flat[interval.begin : interval.begin + interval.numel]
            tensor_of(interval.param).copy_(part)
            if interval.master is not None:
                tensor_of(interval.master).copy_(part)
    engine.accept_changes()


def masters_from_parameters(
    engine: _C.Engine, layout: ModelLayout, *, only_changed: bool = False
) -> None:
    """Copies the parameters' values into their masters. Collective.

    `only_changed`: a master that rounds to its parameter stays as precise as it is.
    """
    with torch.no_grad():
        for parameter in to_write(engine, layout):
            take_loaded(engine, layout.ids[parameter])
            for interval in engine.state_intervals(layout.ids[parameter]):
                if interval.master is None:
                    continue
                master = tensor_of(interval.master)
                if only_changed:
                    keep_precise(interval, master)
                else:
                    master.copy_(tensor_of(interval.param))
    engine.refresh_from_masters()


def decoded_parts(engine: _C.Engine, index: int) -> Iterator[tuple[torch.Tensor, ...]]:
    """Where ranks compute with decoded values (zero_quantized_weights at stages 1 and 2), the full
    parameter is apart from this rank's part: gives by interval that part, the same elements of the
    full parameter, and what those were before the program wrote to it. Else gives nothing.
    """
    capsule = engine.decoded_part(index)
    if capsule is None:
        return
    decoded, full, begin = tensor_of(capsule), tensor_of(engine.parameter(index)), 0
    for interval in engine.state_intervals(index):
        written = full[interval.begin : interval.begin + interval.numel]
        yield tensor_of(interval.param), written, decoded[begin : begin + interval.numel]
        begin += interval.numel


def take_loaded(engine: _C.Engine, index: int) -> None:
    """Takes a full parameter that was loaded as a whole into this rank's part of it, which keeps
    its precise values only if they are all that was loaded."""
    for own, full, decoded in decoded_parts(engine, index):
        if not torch.equal(full, decoded):
            own.copy_(full)


def take_written(engine: _C.Engine, index: int) -> bool:
    """Takes what the program has changed in a full parameter into this rank's part of it, whose
    other elements stay precise. A zero always counts as written, since programs write zeros (they
    prune) also where an element has decoded to 0. Returns False where nothing is apart.
    """
    apart = False
    for own, full, decoded in decoded_parts(engine, index):
        own.copy_(torch.where((full == decoded) & (full != 0), own, full))
        apart = True
    return apart


def keep_precise(interval: _C.StateInterval, precise: torch.Tensor) -> None:
    """Gives the master the values that round to the parameter's, and of others the parameter's."""
    values = tensor_of(interval.param).to(precise.device)  # masters may be offloaded
    same = precise.to(values.dtype) == values
    tensor_of(interval.master).copy_(torch.where(same, precise, values.to(precise.dtype)))
