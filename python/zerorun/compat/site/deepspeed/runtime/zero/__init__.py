"""deepspeed.zero."""

from deepspeed._placeholders import lazy_submodules
from zerorun.zero import (
    GatheredParameters,
    Init,
    ZeroParamStatus,
    register_external_parameter,
    unregister_external_parameter,
)

__all__ = [
    "GatheredParameters",
    "Init",
    "ZeroParamStatus",
    "register_external_parameter",
    "unregister_external_parameter",
]

__getattr__ = lazy_submodules(__name__)
