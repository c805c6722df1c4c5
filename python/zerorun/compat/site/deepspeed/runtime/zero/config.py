"""Names that scripts import."""

from enum import IntEnum


class ZeroStageEnum(IntEnum):
    """Stages of ZeRO."""

    disabled = 0
    optimizer_states = 1
    gradients = 2
    weights = 3
    max_stage = 3
