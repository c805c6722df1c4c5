"""The weights of PEFT's adapters within those that they adapt, one parameter at a time."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from zerorun import _C
from zerorun.model.local_tensor import local_of, place
from zerorun.model.partition import gathered

_PREFIX = "base_model.model."  # of a PeftModel's modules


class MergedAdapters:
    """A model without its adapters, whose weights are those that PEFT's own merge() makes."""

    def __init__(self, model: nn.Module) -> None:
        """Raises ConfigError where adapters are merged already."""
        self._layers: dict[nn.Parameter, Any] = {}  # those that adapt a parameter
        self._left_out: set[nn.Parameter] = set()
        for name, module in model.named_modules():
            if hasattr(module, "modules_to_save") and hasattr(module, "original_module"):
                self._left_out.update(module.original_module.parameters())
            elif hasattr(module, "get_base_layer") and hasattr(module, "merged_adapters"):
                if module.merged_adapters:
                    raise _C.ConfigError(
                        f"stream_parameters: merge_adapters: {name} has merged adapters already: "
                        "unmerge_adapter() first, or stream without merge_adapters"
                    )
                adapted = dict.fromkeys(module.get_base_layer().parameters(), module)
                self._layers |= adapted
                self._left_out |= set(module.parameters()) - adapted.keys()

    def keeps(self, parameter: nn.Parameter) -> bool:
        return parameter not in self._left_out

    def name(self, name: str) -> str:
        """The name in the model without adapters."""
        parts = name.removeprefix(_PREFIX).split(".")
        if "modules_to_save" in parts:  # modules_to_save.default
            at = parts.index("modules_to_save")
            del parts[at : at + 2]
        return ".".join(part for part in parts if part != "base_layer")

    def merged(self, parameter: nn.Parameter, values: torch.Tensor) -> torch.Tensor:
        """`values`, or those with the active adapters. Collective where adapters are sharded."""
        layer = self._layers.get(parameter)
        if layer is None or layer.disable_adapters:
            return values
        with gathered(layer.parameters()), _copied(layer.get_base_layer()), torch.no_grad():
            layer.merge()
            layer.merged_adapters.clear()
            return local_of(parameter)


@contextlib.contextmanager
def _copied(module: nn.Module) -> Iterator[None]:
    """Lets the module's parameters be written; they are as before afterwards."""
    before = [(parameter, local_of(parameter)) for parameter in module.parameters()]
    try:
        for parameter, values in before:
            place(parameter, values.clone())
        yield
    finally:
        for parameter, values in before:
            place(parameter, values)
