"""Batch sizes for many numbers of ranks: what DeepSpeed up to 0.19.7 has under this name."""

from deepspeed._placeholders import placeholder
from deepspeed.elasticity.constants import ELASTICITY, ENABLED, ENABLED_DEFAULT
from deepspeed.elasticity.elasticity import (
    compute_elastic_config,
    elasticity_enabled,
    ensure_immutable_elastic_config,
)

__all__ = [
    "ELASTICITY",
    "ENABLED",
    "ENABLED_DEFAULT",
    "DSElasticAgent",
    "compute_elastic_config",
    "elasticity_enabled",
    "ensure_immutable_elastic_config",
]

DSElasticAgent = placeholder("deepspeed.elasticity.DSElasticAgent")
