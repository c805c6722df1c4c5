"""The keywords of zerorun.shard: which kinds of values they take, and errors that name them."""

from __future__ import annotations

import contextlib
import numbers
import os
import re
from collections.abc import Iterator
from typing import Any

from zerorun import _C

# Where the configuration that zerorun.shard makes has the values of its keywords.
_POINTERS = {
    "/zero_optimization/stage": "stage",
    "/zerorun/shard_group_size": "shard_group_size",
    "/gradient_clipping": "clip",
    "/gradient_accumulation_steps": "accumulation_steps",
    "/zerorun/comm_timeout": "timeout",
    "/communication_data_type": "reduce_dtype",
    "/bf16/enabled": "dtype",
    "/fp16/enabled": "dtype",
    "/zero_optimization/offload_optimizer": "offload_optimizer",
    "/zero_optimization/offload_param": "offload_params",
}
_FOLDER = "expected a folder on a local disk"


def number_of(keyword: str, value: Any) -> Any:
    """The value as JSON has it, which the configuration checks; "auto" is one, too."""
    if isinstance(value, bool | str):
        return value
    if isinstance(value, numbers.Integral):  # NumPy's are
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value)
    raise _C.ConfigError(f"shard: {keyword}: got {_text(value)}, expected a number")


def place_of(keyword: str, value: Any) -> str:
    """Where to offload to."""
    if isinstance(value, str | os.PathLike):
        return os.fspath(value)
    raise _C.ConfigError(
        f'shard: {keyword}: got {_text(value)}, expected "cpu" or the path of a folder on a local '
        "disk"
    )


def check_initial_values(init: Any, weights: Any) -> None:
    """Raises ConfigError unless they are a function and something like a dictionary."""
    if init is not None and not callable(init):
        raise _C.ConfigError(f"shard: init: got {_text(init)}, expected a function of a module")
    if weights is not None and not (hasattr(weights, "keys") and hasattr(weights, "__getitem__")):
        raise _C.ConfigError(
            f"shard: weights: got {_text(weights)}, expected a mapping from names to tensors"
        )


def _text(value: Any) -> str:
    return "None" if value is None else str(type(value))


@contextlib.contextmanager
def naming_keywords() -> Iterator[None]:
    """Errors about the configuration that zerorun.shard makes name the keywords instead."""
    try:
        yield
    except _C.Error as error:
        error.args = (_with_keywords(str(error)), *error.args[1:])
        raise


def _with_keywords(text: str) -> str:
    text = re.sub(r"^zerorun\.shard: 1 problem\s+1\. ", "shard: ", text)
    for pointer, keyword in _POINTERS.items():
        place = re.escape(pointer) + r"(/device|/nvme_path)?(?![\w/])"
        text = re.sub(rf"{place}( \(\d+:\d+\))?( \(/[\w/]+\))?", keyword, text)
    return text.replace(_FOLDER, f'expected "cpu" or {_FOLDER.removeprefix("expected ")}')
