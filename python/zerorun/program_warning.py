"""What a program gives and does: numbers, and warnings at the line where it does it; its log."""

import logging
import os
import sys
import warnings
from numbers import Real
from typing import Any

logger = logging.getLogger("zerorun")
_OWN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "")


def is_number(value: Any, kind: type = Real) -> bool:
    """Whether a value is a number of a kind, such as NumPy's, and no truth value."""
    return isinstance(value, kind) and not isinstance(value, bool)


def warn(message: str, kind: type[Warning] = UserWarning) -> None:
    """A warning at the innermost line of Python that is neither zerorun's nor PyTorch's."""
    torch = getattr(sys.modules.get("torch"), "__file__", None)
    packages = (_OWN, *([] if torch is None else [os.path.join(os.path.dirname(torch), "")]))
    frame: Any = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(packages):
        frame = frame.f_back
    warnings.warn_explicit(
        message,
        kind,
        frame.f_code.co_filename,
        frame.f_lineno,
        registry=frame.f_globals.setdefault("__warningregistry__", {}),
    )
