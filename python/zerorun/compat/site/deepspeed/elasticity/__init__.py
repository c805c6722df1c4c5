"""Batch sizes for many numbers of ranks: what DeepSpeed up to 0.19.7 has under this name."""

import json
import os
import re
from typing import Any

import zerorun
from zerorun import _C
from zerorun import config as configuration

from deepspeed._placeholders import placeholder
from deepspeed.runtime.config import DeepSpeedConfigError
from deepspeed.utils.logging import logger

DSElasticAgent = placeholder("deepspeed.elasticity.DSElasticAgent")


ELASTICITY = "elasticity"
MINIMUM_DEEPSPEED_VERSION = "0.3.8"
DEEPSPEED_ELASTICITY_CONFIG = "DEEPSPEED_ELASTICITY_CONFIG"
ENABLED, ENABLED_DEFAULT = "enabled", False
MIN_TIME, MIN_TIME_DEFAULT = "min_time", 0
IGNORE_NON_ELASTIC_BATCH_INFO = "ignore_non_elastic_batch_info"
IGNORE_NON_ELASTIC_BATCH_INFO_DEFAULT = False


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
            self.section = _C.elasticity_of(configuration.parse({ELASTICITY: param_dict}))
        except zerorun.ConfigError as error:
            raise ElasticityConfigError(str(error)) from error
        section = self.section
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

    def repr(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "section"}

    def __repr__(self) -> str:
        return json.dumps(self.repr(), sort_keys=True, indent=4)


_BY_HOSTS = 0.2  # the version of the rules


def elasticity_enabled(ds_config: dict[str, Any]) -> bool:
    return (ds_config.get(ELASTICITY) or {}).get(ENABLED, ENABLED_DEFAULT)


def ensure_immutable_elastic_config(runtime_elastic_config_dict: dict[str, Any]) -> None:
    """ElasticityConfigError unless a scheduler has counted by the same section."""
    if DEEPSPEED_ELASTICITY_CONFIG not in os.environ:
        logger.warning(
            "%s is not set: what chooses the number of ranks may not know the section elasticity",
            DEEPSPEED_ELASTICITY_CONFIG,
        )
    section = ElasticityConfig(runtime_elastic_config_dict).section
    try:
        _C.check_scheduler(section)
    except zerorun.ConfigError as error:
        raise ElasticityConfigError(str(error)) from error


def check_batch_keys(ds_config: dict[str, Any]) -> None:
    """ElasticityConfigError for batch sizes beside a section that computes them."""
    if (ds_config[ELASTICITY] or {}).get("ignore_non_elastic_batch_info"):
        return
    names = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    given = [name for name in names if ds_config.get(name) not in (None, "auto")]
    if given:
        raise ElasticityConfigError(
            f"{', '.join(given)}: the section elasticity computes the batch; remove these keys, or "
            "set elasticity.ignore_non_elastic_batch_info to true"
        )


def compute_elastic_config(
    ds_config: dict[str, Any],
    target_deepspeed_version: str,
    world_size: int = 0,
    return_microbatch: bool = False,
) -> tuple[int, list[int]] | tuple[int, list[int], int | None]:
    """The batch, the numbers of data-parallel ranks that it suits, and the micro-batch of
    `world_size` ranks (0: WORLD_SIZE, where that is needed)."""
    section = _section_of(ds_config)
    _check_version(target_deepspeed_version)
    counts_hosts = section.version == _BY_HOSTS
    ranks = world_size
    if not ranks and (counts_hosts or return_microbatch):
        text = os.environ.get("WORLD_SIZE")
        if text is None or not text.isnumeric():
            raise ElasticityConfigError(
                f"elasticity {section.version} needs the number of ranks: give world_size, or set "
                f"WORLD_SIZE (it is {text})"
            )
        ranks = int(text)
    try:
        found = _C.elastic_batch(section, int(ranks))
    except zerorun.ConfigError as error:
        raise ElasticityError(str(error)) from error
    batch, sizes = found.train_batch_size, found.world_sizes
    logger.info("Valid World Size (GPUs / Model Parallel Size): %s", sizes)
    if not world_size and not return_microbatch:
        return batch, sizes
    if not world_size and counts_hosts:  # DeepSpeed does not ask whether it suits then
        share = batch // (ranks // section.model_parallel_size)  # of one data-parallel rank
        fitting = [size for size in section.micro_batch_sizes if share % size == 0]
        if section.prefer_larger_batch:
            fitting.sort(reverse=True)
        return batch, sizes, fitting[0] if fitting else None
    if ranks not in sizes:
        raise ElasticityIncompatibleWorldSize(
            f"World size ({ranks}) is not valid with the current list of valid GPU counts: {sizes}"
        )
    return batch, sizes, found.micro_batch_size


def _section_of(ds_config: dict[str, Any]) -> _C.Elasticity:
    if not isinstance(ds_config, dict):
        raise ValueError(
            f"compute_elastic_config: got {type(ds_config)}, expected a configuration as a dict"
        )
    if ELASTICITY not in ds_config:
        raise ElasticityConfigError("the configuration has no section 'elasticity'")
    if not elasticity_enabled(ds_config):
        raise ElasticityConfigError("the section elasticity is not enabled: set 'enabled': true")
    return ElasticityConfig(ds_config[ELASTICITY]).section


def _check_version(target: str) -> None:
    def numbers(version: str) -> list[int]:
        return [int(part) for part in re.findall(r"\d+", version)[:3]]

    if numbers(target) < numbers(MINIMUM_DEEPSPEED_VERSION):
        raise ElasticityError(
            f"DeepSpeed {target} has no elasticity, which came with {MINIMUM_DEEPSPEED_VERSION}"
        )
