"""Operators: which of them have a class here that works."""

from typing import Any

from deepspeed._finder import fallback
from deepspeed.ops.op_builder import ALL_OPS

_other = fallback(__name__)
# Their optimizers run on zerorun's kernels, and offloading reads and writes files by itself.
_WORKING = {
    "async_io",
    "cpu_adagrad",
    "cpu_adam",
    "cpu_lion",
    "fused_adam",
    "fused_lamb",
    "fused_lion",
}


_COMPATIBLE = {name: name in _WORKING for name in [*ALL_OPS, "deepspeed_not_implemented"]}


def __getattr__(name: str) -> Any:
    return _COMPATIBLE if name == "__compatible_ops__" else _other(name)
