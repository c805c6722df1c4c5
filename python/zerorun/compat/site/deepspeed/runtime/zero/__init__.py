"""deepspeed.zero."""

# ruff: noqa: F401 - scripts import these names from here

from zerorun.zero import (
    GatheredParameters,
    ZeroParamStatus,
    register_external_parameter,
    unregister_external_parameter,
)

from deepspeed.runtime.zero.partition_parameters import Init

MiCS_Init = Init  # what versions before 0.19 call it in programs that set mics_shard_size
