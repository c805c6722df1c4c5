"""What the tensors of a checkpoint are that says no more of them than names and values."""

import fnmatch
from collections.abc import Iterator, Mapping

import torch

from zerorun import _C
from zerorun.interchange.source import Source, SourceParameter

_BUFFER, _FROZEN = "buffer", "frozen"
_OF_NORMS = ("running_mean", "running_var", "num_batches_tracked")
_PACKED = (torch.uint8, torch.int8)  # as weights are that were quantized
_SAMPLE_NUMEL = 64
_MOST_SHOWN = 8  # names in a message


def settle(source: Source, given: Mapping[str, str]) -> list[str]:
    """Makes buffers and second names out of the source's parameters that are such.

    `given`: by name or pattern, "buffer", "frozen", or the parameter of which it is another name;
    it comes first. Of a source that only names tensors the rest is concluded: where any are in
    parts, those of ranks, buffers are whole; tied parameters are saved under both names, with
    states under one. Returns what was concluded, in words. Raises CheckpointError, ConfigError.
    """
    kinds = _expand(source, given)
    for name, kind in kinds.items():
        _put(source, name, kind)
    trained = any(parameter.trained for parameter in source.parameters.values())
    told: list[str] = []
    if source.only_names:
        divided = any(parameter.parts > 1 for parameter in source.parameters.values())
        told += _conclude(source, kinds, trained=trained, divided=divided)
    if not trained:
        for name, parameter in source.parameters.items():
            parameter.trained = parameter.dtype.is_floating_point and name not in kinds
    return told


def _conclude(
    source: Source, kinds: Mapping[str, str], *, trained: bool, divided: bool
) -> Iterator[str]:
    settled = {*kinds, *kinds.values()}
    open_names = [n for n, p in source.parameters.items() if not p.trained and n not in settled]
    buffers = [n for n in open_names if _is_buffer(n, source.parameters[n], divided)]
    for name in buffers:
        _put(source, name, _BUFFER)
    if buffers:
        yield (
            f"taken as buffers: {_listed(buffers)} (--tensor NAME={_FROZEN} for what is a frozen "
            "parameter)"
        )
    ties = dict(_ties(source, set(open_names)))
    for name, owner in ties.items():
        _put(source, name, owner)
    if ties:
        pairs = [f"{name} = {owner}" for name, owner in ties.items()]
        yield (
            f"taken as tied, because their values are the same: {_listed(pairs)} (--tensor "
            f"NAME={_FROZEN} for what is a parameter of its own)"
        )
    rest = [n for n in open_names if n in source.parameters]
    if rest and not trained:
        yield (
            f"{source.why_no_states}: {len(rest)} tensors are taken as parameters, those of "
            f"floating point as trained (--tensor NAME={_FROZEN} or NAME={_BUFFER} for others); "
            "optimizer states begin anew"
        )
    elif rest and not divided:
        yield (
            f"taken as frozen parameters: {_listed(rest)} (--tensor NAME={_BUFFER} for what is a "
            "buffer)"
        )


def _expand(source: Source, given: Mapping[str, str]) -> dict[str, str]:
    """The kinds by name. Raises ConfigError for what is in no tensor's name or cannot be so."""
    kinds: dict[str, str] = {}
    names = list(source.parameters)
    for pattern, kind in given.items():
        found = [pattern] if pattern in source.parameters else fnmatch.filter(names, pattern)
        if not found:
            near = _C.nearest_parameter(pattern, names)
            raise _C.ConfigError(
                f"--tensor {pattern}={kind}: {source.path} has no such parameter"
                + (f"; nearest: {near}" if near else "")
            )
        for name in found:
            _check(source, name, kind)
            kinds[name] = kind
    chained = [name for name, kind in kinds.items() if kinds.get(kind) not in {None, _FROZEN}]
    if chained:
        name = chained[0]
        raise _C.ConfigError(f"--tensor {name}={kinds[name]}: which is {kinds[kinds[name]]} itself")
    return kinds


def _check(source: Source, name: str, kind: str) -> None:
    parameter, where = source.parameters[name], f"--tensor {name}={kind}"
    if parameter.trained:
        raise _C.ConfigError(f"{where}: {name} has optimizer states, so it is a trained parameter")
    if kind in {_BUFFER, _FROZEN}:
        return
    owner = source.parameters.get(kind)
    if owner is None or owner is parameter:
        raise _C.ConfigError(
            f"{where}: expected {_BUFFER}, {_FROZEN}, or the name of the parameter that it is tied "
            "to"
        )
    if not owner.equals(parameter, 0, parameter.numel):
        raise _C.ConfigError(
            f"{where}: {name} and {kind} differ in values, shape or dtype: they are not tied"
        )


def _put(source: Source, name: str, kind: str) -> None:
    if kind == _BUFFER:
        source.buffers[name] = source.parameters.pop(name).full()
    elif kind != _FROZEN:
        del source.parameters[name]
        source.aliases[name] = kind


def _is_buffer(name: str, parameter: SourceParameter, divided: bool) -> bool:
    """`divided`: ranks saved their parts of parameters."""
    if divided:
        return parameter.parts == 1
    whole_numbers = not parameter.dtype.is_floating_point and parameter.dtype not in _PACKED
    return whole_numbers or name.rpartition(".")[2] in _OF_NORMS


def _ties(source: Source, open_names: set[str]) -> Iterator[tuple[str, str]]:
    """Names with the parameter that they name, too: one that is trained, or else an earlier one."""
    alike: dict[object, list[str]] = {}
    for name, parameter in source.parameters.items():
        alike.setdefault((parameter.shape, parameter.dtype, parameter.parts), []).append(name)
    for names in alike.values():
        if len(names) < 2 or open_names.isdisjoint(names):
            continue
        owners: dict[object, list[str]] = {}
        for name in sorted(names, key=lambda name: name in open_names):
            parameter, numel = source.parameters[name], source.parameters[name].numel
            sample = torch.empty(min(numel, _SAMPLE_NUMEL), dtype=parameter.dtype)
            parameter.read(None, 0, sample)
            before = owners.setdefault(tuple(sample.view(torch.uint8).tolist()), [])
            values = parameter.full().flatten() if name in open_names else sample
            # Parameters that begin as zeros or ones have that in common without being tied.
            if name in open_names and not bool((values == values[:1]).all()):
                equal = (o for o in before if source.parameters[o].equals(parameter, 0, numel))
                if owner := next(equal, None):
                    yield name, owner
                    continue
            before.append(name)


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _MOST_SHOWN} more" if len(names) > _MOST_SHOWN else ""
    return ", ".join(names[:_MOST_SHOWN]) + more
