"""deepspeed.zero."""

from zerorun.zero import (
    GatheredParameters,
    ZeroParamStatus,
    register_external_parameter,
    unregister_external_parameter,
)

from deepspeed.runtime.zero.partition_parameters import Init

__all__ = [
    "GatheredParameters",
    "Init",
    "MiCS_Init",
    "ZeroParamStatus",
    "register_external_parameter",
    "unregister_external_parameter",
]

MiCS_Init = Init  # what versions before 0.19 call it in programs that set mics_shard_size
