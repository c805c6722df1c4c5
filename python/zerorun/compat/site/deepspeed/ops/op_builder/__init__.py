"""Builders of operators by name: importable, and incompatible with every machine; zerorun's kernels
are compiled into it."""

import re
from typing import Any

from deepspeed._finder import fallback
from deepspeed._names import modules, names_of
from deepspeed._placeholders import placeholder

_other = fallback(__name__)
# Where DeepSpeed's name is not the class's in lower case.
_NAMES = {
    "CCLComm": "deepspeed_ccl_comm",
    "DeepCompile": "dc",
    "Inference": "transformer_inference",
    "InferenceCore": "inference_core_ops",
    "InferenceCutlass": "cutlass_ops",
    "NotImplemented": "deepspeed_not_implemented",
    "RaggedOps": "ragged_device_ops",
    "RaggedUtils": "ragged_ops",
    "ShareMemComm": "deepspeed_shm_comm",
}
_WORDS = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


def __getattr__(name: str) -> Any:
    if not name.endswith("Builder") or name.startswith("_"):
        return _other(name)
    stem = name.removesuffix("Builder")
    own = _NAMES.get(stem) or _WORDS.sub("_", stem).lower()
    members = {"__module__": __name__, "NAME": own, "BUILD_VAR": f"DS_BUILD_{own.upper()}"}
    value = globals()[name] = type(name, (OpBuilder,), members)
    return value


class OpBuilder:
    """An operator that needs no build; its kernel is reached through zerorun, not by itself."""

    NAME = ""  # DeepSpeed's for the operator
    BUILD_VAR = ""

    def __init__(self, name: str | None = None) -> None:
        self.name = name or self.NAME or type(self).__name__

    def absolute_name(self) -> str:
        return f"deepspeed.ops.{self.name}"

    def is_compatible(self, verbose: bool = False) -> bool:
        """False: there is nothing to load."""
        return False

    def load(self, verbose: bool = True) -> Any:
        """Programs call it to have a kernel built before ranks start: there is nothing to build.
        What they would call of the operator raises NotImplementedError."""
        return placeholder(self.absolute_name())

    builder = jit_load = load


class CUDAOpBuilder(OpBuilder):
    """An operator of GPUs."""


class TorchCPUOpBuilder(CUDAOpBuilder):
    """An operator of CPUs."""


_PACKAGE = "ops.op_builder."
_BASES = {"CPUOpBuilder", "CUDAOpBuilder", "OpBuilder", "TorchCPUOpBuilder"}
_CLASSES = {
    name
    for module in modules()
    if module.startswith(_PACKAGE)
    # Other subpackages are of other accelerators.
    and "." not in module.removeprefix(_PACKAGE).removeprefix("cpu.")
    for name in names_of(module).classes
    if name.endswith("Builder") and name not in _BASES
}
ALL_OPS = {builder.NAME: builder() for builder in map(__getattr__, sorted(_CLASSES))}
