"""Batches of the section elasticity: deepspeed.elasticity, and engines that follow it."""

import json
import os
from unittest import mock

import deepspeed
import torch
from deepspeed.elasticity import (
    compute_elastic_config,
    elasticity_enabled,
    ensure_immutable_elastic_config,
)
from deepspeed.elasticity.config import (
    ElasticityConfig,
    ElasticityConfigError,
    ElasticityError,
    ElasticityIncompatibleWorldSize,
)

from cases.compat import begin
from cases.models import WORLD_SIZE, initialize, raises, refuses

SECTION = {"enabled": True, "max_train_batch_size": 100, "micro_batch_sizes": [4, 6]}


def batches(world_size: int = 0, micro: bool = False, **section: object) -> tuple:
    config = {"elasticity": SECTION | section}
    return compute_elastic_config(config, "0.19.7", world_size, return_microbatch=micro)


def case_a_star_brings_what_is_of_the_module() -> None:
    names = set(deepspeed.elasticity.config.__all__)
    assert {"ElasticityConfig", "MIN_TIME", "compute_elastic_config"} <= names
    assert not {"Any", "DeepSpeedConfigError", "logger", "placeholder"} & names


def case_batches_are_deepspeeds() -> None:
    """What compute_elastic_config of DeepSpeed 0.19.7 returned; tests/config has many more.

    Where a model is divided, 0.19.7 divided the batch among all ranks, which later ones do not.
    """
    known = {"max_train_batch_size": 10000, "micro_batch_sizes": [8, 12, 16, 17], "version": 0.1}
    known |= {"min_gpus": 32, "max_gpus": 1500}
    batch, sizes = batches(**known)
    assert (batch, len(sizes), sizes[0], sizes[-1]) == (9792, 23, 32, 1224)
    assert batches(64, **known)[2] == 17
    assert batches(7, version=0.2) == (84, [7], 6)
    with mock.patch.dict(os.environ, WORLD_SIZE="7"):
        assert batches(version=0.2) == (84, [7])
        assert batches(micro=True, version=0.2) == (84, [7], 6)
        smaller = batches(micro=True, version=0.2, prefer_larger_batch=False)
        assert smaller == (84, [7], 4)
    for divided, found in (
        (1, 4),
        (2, 8),
    ):  # 64 samples are 4 for each of 16 ranks, 8 for each of 8
        known = {"max_train_batch_size": 64, "micro_batch_sizes": [4, 8], "version": 0.2}
        known |= {"min_gpus": 16, "max_gpus": 16, "model_parallel_size": divided}
        with mock.patch.dict(os.environ, WORLD_SIZE="16"):
            batch, _, micro = batches(micro=True, num_gpus_per_node=8, **known)
        assert (batch, micro) == (64, found)


def case_what_cannot_be_is_an_error() -> None:
    raises(ElasticityIncompatibleWorldSize, "World size (7)", batches, 7, version=0.1)
    raises(ElasticityConfigError, "version", batches, version=0.3)
    text = "model_parallel_size"
    raises(ElasticityConfigError, text, batches, version=0.1, model_parallel_size=2)
    raises(ElasticityConfigError, "not enabled", batches, enabled=False)
    raises(ElasticityConfigError, "section", compute_elastic_config, {}, "0.19.7")
    raises(ElasticityError, "0.3.8", compute_elastic_config, {"elasticity": SECTION}, "0.3")
    with mock.patch.dict(os.environ):
        os.environ.pop("WORLD_SIZE")
        raises(ElasticityConfigError, "WORLD_SIZE", batches, version=0.2)
    config = ElasticityConfig(SECTION | {"min_time": 20})
    assert (config.max_acceptable_batch_size, config.micro_batches) == (100, [4, 6])
    assert (config.min_time, config.version) == (20, 0.2)
    assert json.loads(repr(config)) == config.repr()
    assert not elasticity_enabled({})


def case_an_engine_has_the_batch_of_its_ranks() -> None:
    section = SECTION | {"version": 0.1}
    given = {"elasticity": section, "train_batch_size": 3}
    model = torch.nn.Linear(2, 2)
    refuses("/train_batch_size", initialize, model, config=given)
    section["ignore_non_elastic_batch_info"] = True
    batch, _, micro = compute_elastic_config(given, "0.19.7", WORLD_SIZE)
    for start in (initialize, begin):
        engine, *_ = start(model=torch.nn.Linear(2, 2), config=given)
        assert engine.batch.train_batch_size == batch
        assert engine.batch.micro_batch_size == micro
        assert engine.batch.accumulation_steps * micro * WORLD_SIZE == batch
    assert deepspeed.DeepSpeedConfig(given).train_batch_size == batch
    small = {"elasticity": section | {"min_gpus": 3}}
    refuses(f"got {WORLD_SIZE}; nearest: 3", initialize, model, config=small)
    raises(ElasticityIncompatibleWorldSize, "is not valid", begin, model=model, config=small)


def case_a_scheduler_counts_by_the_same_section() -> None:
    model, given = torch.nn.Linear(2, 2), {"elasticity": SECTION}
    scheduled = {"DEEPSPEED_ELASTICITY_CONFIG": json.dumps(SECTION | {"micro_batch_sizes": [4]})}
    with mock.patch.dict(os.environ, scheduled):
        refuses("micro_batch_sizes is [4, 6]", initialize, model, config=given)
        raises(ElasticityConfigError, "scheduler", ensure_immutable_elastic_config, SECTION)
    with mock.patch.dict(os.environ, {"DEEPSPEED_ELASTICITY_CONFIG": json.dumps(SECTION)}):
        ensure_immutable_elastic_config(SECTION)
        engine, *_ = initialize(model, config=given)
        engine.destroy()
