"""Operators: which of them have a class here that works."""

import functools
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


@functools.cache
def _compatible_ops() -> dict[str, bool]:
    names = [*ALL_OPS, "deepspeed_not_implemented"]
    return {name: name in _WORKING for name in names}


def __getattr__(name: str) -> Any:
    return _compatible_ops() if name == "__compatible_ops__" else _other(name)
