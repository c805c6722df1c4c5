"""Builders of operators by name: importable, and incompatible with every machine."""

import re
from typing import Any

from deepspeed._finder import fallback
from deepspeed.ops.op_builder.builder import OpBuilder

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
