"""Parameters that a module uses in its forward but does not own."""

from __future__ import annotations

import weakref

from torch import nn

from zerorun import _C
from zerorun.model.partition import partition_of

_registered: weakref.WeakKeyDictionary[nn.Module, list[nn.Parameter]] = weakref.WeakKeyDictionary()


def register_external_parameter(module: nn.Module, parameter: nn.Parameter) -> None:
    """Declares that `module` uses `parameter` in forward although another module owns it.

    The parameter is then gathered for forward and backward of `module`, also of a call that is
    running. Accesses through an
    attribute of the owning module are detected without this; call it if the parameter is reached in
    another way. May be called before and after zerorun.initialize. Raises ConfigError for arguments
    of other types.
    """
    if not isinstance(module, nn.Module) or not isinstance(parameter, nn.Parameter):
        raise _C.ConfigError(
            f"register_external_parameter: got {type(module)} and {type(parameter)}, expected a "
            "module and a parameter"
        )
    known = _registered.setdefault(module, [])
    if not any(p is parameter for p in known):
        known.append(parameter)
    partition = partition_of(parameter)
    if partition is not None:
        partition.watch(module)


def unregister_external_parameter(module: nn.Module, parameter: nn.Parameter) -> None:
    """Undoes :func:`register_external_parameter`."""
    known = _registered.get(module, [])
    known[:] = [p for p in known if p is not parameter]


# Whether a module has registered ones, asked before each call of a module.
any_external = _registered.__len__


def external_parameters(module: nn.Module) -> list[nn.Parameter]:
    """The registered ones that an engine shards."""
    known = _registered.get(module, ())
    found = [(p, partition_of(p)) for p in known]
    return [p for p, partition in found if partition is not None and partition.in_engine]
