"""Batch sizes for many numbers of ranks: what DeepSpeed up to 0.19.7 has under this name."""

# ruff: noqa: F401 - scripts import these names from here

from deepspeed._placeholders import placeholder
from deepspeed.elasticity.constants import ELASTICITY, ENABLED, ENABLED_DEFAULT
from deepspeed.elasticity.elasticity import (
    compute_elastic_config,
    elasticity_enabled,
    ensure_immutable_elastic_config,
)

DSElasticAgent = placeholder("deepspeed.elasticity.DSElasticAgent")
