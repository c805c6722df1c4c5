"""Builders of operators by name: importable, and incompatible with every machine."""

from typing import Any

from deepspeed._finder import fallback
from deepspeed.ops.op_builder.builder import OpBuilder

_other = fallback(__name__)


def __getattr__(name: str) -> Any:
    if not name.endswith("Builder") or name.startswith("_"):
        return _other(name)
    value = globals()[name] = type(name, (OpBuilder,), {"__module__": __name__})
    return value
