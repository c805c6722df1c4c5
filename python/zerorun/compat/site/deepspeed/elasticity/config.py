"""The section as an object, and what can be wrong with it."""

import json
from typing import Any

import zerorun
from zerorun import _C
from zerorun import config as configuration

from deepspeed.elasticity.constants import (
    ELASTICITY,
    IGNORE_NON_ELASTIC_BATCH_INFO,
    IGNORE_NON_ELASTIC_BATCH_INFO_DEFAULT,
    MIN_TIME,
    MIN_TIME_DEFAULT,
)
from deepspeed.runtime.config import DeepSpeedConfigError


class ElasticityError(DeepSpeedConfigError):
    """The base of all errors below."""


class ElasticityConfigError(ElasticityError):
    """A section that cannot be used."""


class ElasticityIncompatibleWorldSize(ElasticityError):  # noqa: N818 - DeepSpeed's name
    """A number of ranks that the batch does not suit."""


class ElasticityConfig:
    """The keys of a section, checked, under DeepSpeed's names. `section` is the core's."""

    def __init__(self, param_dict: dict[str, Any]) -> None:
        try:
            self._section = _C.elasticity_of(configuration.parse({ELASTICITY: param_dict}))
        except zerorun.ConfigError as error:
            raise ElasticityConfigError(str(error)) from error
        section = self._section
        self.enabled = section.enabled
        self.max_acceptable_batch_size = section.max_train_batch_size
        self.micro_batches = section.micro_batch_sizes
        self.min_gpus, self.max_gpus = section.min_gpus, section.max_gpus
        self.model_parallel_size = section.model_parallel_size
        self.num_gpus_per_node = section.num_gpus_per_node
        self.min_time = param_dict.get(MIN_TIME, MIN_TIME_DEFAULT)
        self.version = section.version
        self.prefer_larger_batch_size = section.prefer_larger_batch
        self.ignore_non_elastic_batch_info = param_dict.get(
            IGNORE_NON_ELASTIC_BATCH_INFO, IGNORE_NON_ELASTIC_BATCH_INFO_DEFAULT
        )

    @property
    def section(self) -> _C.Elasticity:
        return self._section

    def repr(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if not name.startswith("_")}

    def __repr__(self) -> str:
        return json.dumps(self.repr(), sort_keys=True, indent=4)
