"""Values that scripts read of DeepSpeed's modules, sections and objects without calling them."""

import argparse

import pydantic
from deepspeed.elasticity import elasticity_enabled, ensure_immutable_elastic_config
from deepspeed.elasticity.config import *
from deepspeed.runtime import lr_schedules, precision_config
from deepspeed.runtime.config_utils import get_config_default
from deepspeed.runtime.zero.config import DeepSpeedZeroConfig, ZeroStageEnum, get_zero_config
from deepspeed.runtime.zero.offload_config import (
    DeepSpeedZeroOffloadOptimizerConfig,
    OffloadDeviceEnum,
)
from deepspeed.utils import groups

from cases.compat import *

FP16 = {"fp16": {"enabled": True, "initial_scale_power": 4, "loss_scale_window": 2}}


def case_values_of_a_section_that_follow_from_others() -> None:
    stages = [DeepSpeedZeroConfig(stage=stage).overlap_comm for stage in (0, 2, 3)]
    assert stages == [False, False, True]
    assert not DeepSpeedZeroConfig(stage=3, overlap_comm=False).overlap_comm
    older = DeepSpeedZeroConfig(cpu_offload=True, stage3_gather_fp16_weights_on_model_save=True)
    assert isinstance(older.offload_optimizer, DeepSpeedZeroOffloadOptimizerConfig)
    assert older.gather_16bit_weights_on_model_save
    assert DeepSpeedZeroConfig().offload_param is None
    assert DeepSpeedZeroConfig(cpu_offload_param=True).offload_param.device == "cpu"
    pipelines = [DeepSpeedZeroOffloadOptimizerConfig(pipeline_write=flag) for flag in (True, False)]
    assert [section.pipeline for section in pipelines] == [True, False]
    assert DeepSpeedZeroConfig().leaf_module.classes[0].endswith(".MixtralSparseMoeBlock")
    leaves = DeepSpeedZeroConfig(leaf_module={"classes": "Block"}).leaf_module
    assert (leaves.classes, leaves.names) == (["Block"], [])
    assert precision_config.get_bfloat16_config({"bfloat16": {"enabled": True}}).enabled
    assert not precision_config.get_float16_config({}).enabled


def case_sections_of_a_configuration_are_objects() -> None:
    host = {"device": "cpu"}
    zero = DeepSpeedZeroConfig(stage=3, stage3_prefetch_bucket_size=7, offload_optimizer=host)
    assert (zero.stage, zero.prefetch_bucket_size, zero.reduce_bucket_size) == (3, 7, 500000000)
    assert (zero.offload_optimizer.device, zero.offload_optimizer.ratio) == ("cpu", 1)
    assert zero.model_dump(exclude_unset=True) == {
        "stage": 3,
        "overlap_comm": True,  # which follows from the stage
        "prefetch_bucket_size": 7,
        "offload_optimizer": host,
    }
    assert zero.model_dump(by_alias=True)["stage3_prefetch_bucket_size"] == 7
    assert isinstance(zero, pydantic.BaseModel)
    assert zero.stage == ZeroStageEnum.weights
    assert zero.offload_optimizer.device == OffloadDeviceEnum.cpu
    assert "reduce_bucket_size" not in zero.model_dump(exclude_defaults=True)
    assert get_config_default(DeepSpeedZeroConfig, "stage") == 0
    for value, stage in (({"stage": 2}, 2), (True, 1), (False, 0), (None, 0)):
        assert get_zero_config({"zero_optimization": value}).stage == stage
    for unknown in (lambda: setattr(zero, "stag", 1), lambda: DeepSpeedZeroConfig(stag=1)):
        raises(pydantic.ValidationError, "stag", unknown)
    raises(AttributeError, "stag", lambda: zero.stag)
    for key, value in (("stage", 9), ("reduce_bucket_size", None), ("sub_group_size", -1)):
        wrong = {key: value}
        raises(pydantic.ValidationError, key, DeepSpeedZeroConfig, **wrong)
        given = {"zero_optimization": {"stage": 1, **wrong}}
        for kind in (deepspeed.DeepSpeedConfigError, zerorun.ConfigError, AssertionError):
            raises(kind, f"/zero_optimization/{key}", start, 1, **given)
    whole = deepspeed.DeepSpeedConfig(config(2, fp16={"enabled": False}, prescale_gradients=True))
    assert (whole.zero_config.stage, whole.float16_config.loss_scale_window) == (2, 1000)
    assert (whole.prescale_gradients, whole.dump_state) == (True, False)
    raises(AttributeError, "no_such_thing", lambda: whole.no_such_thing)


def case_which_operators_and_versions_there_are() -> None:
    from deepspeed.accelerator.cpu_accelerator import CPU_Accelerator
    from deepspeed.git_version_info import torch_info, version
    from deepspeed.ops.op_builder import CPUAdamBuilder
    from deepspeed.utils.numa import parse_range_list
    from deepspeed.utils.torch import required_torch_version

    assert version == deepspeed.__version__
    assert torch.__version__.startswith(torch_info["version"] + ".")
    assert {"bf16_support", "cuda_version", "nccl_version", "hip_version"} <= torch_info.keys()
    host = CPU_Accelerator()
    assert host.get_rss() == host.max_mem > 0
    host.max_mem = 1 << 60
    assert 0 < host.reset_rss() == host.max_mem < 1 << 60
    operators = deepspeed.ops.__compatible_ops__
    assert operators[CPUAdamBuilder.NAME]
    assert all(operators[name] for name in ("cpu_adagrad", "cpu_lion", "fused_adam"))
    assert not operators["transformer_inference"]
    assert required_torch_version(min_version=2.0)
    assert not required_torch_version(max_version=1.9)
    assert parse_range_list("0,2-4") == [0, 2, 3, 4]
    raises(ValueError, "rising order", parse_range_list, "8,2-6")
    found = deepspeed.utils.groups._get_expert_parallel_ranks(8, 2, 2)
    assert found[0] == [[0, 2], [4, 6], [1, 3], [5, 7]]
    assert found[1] == [[0, 4], [2, 6], [1, 5], [3, 7]]


def case_schedules_are_chosen_on_the_command_line() -> None:
    parser = lr_schedules.add_tuning_arguments(argparse.ArgumentParser())
    nothing = parser.parse_args([])
    assert lr_schedules.get_config_from_args(nothing)[0] is None
    chosen = parser.parse_args(["--lr_schedule", "WarmupLR", "--warmup_num_steps", "7"])
    section, error = lr_schedules.get_config_from_args(chosen)
    params = {"warmup_min_lr": 0, "warmup_max_lr": 0.001, "warmup_num_steps": 7}
    assert section == {"type": "WarmupLR", "params": params | {"warmup_type": "log"}}
    assert error is None
    assert lr_schedules.get_lr_from_config(section) == (0.001, "")
    cycles = (["--lr_schedule", "OneCycle", *flag] for flag in ([], ["--cycle_momentum"]))
    sections = [lr_schedules.get_config_from_args(parser.parse_args(one))[0] for one in cycles]
    moved = [one["params"][lr_schedules.CYCLE_MOMENTUM] for one in sections]
    assert moved == [False, True]
    for name in lr_schedules.VALID_LR_SCHEDULES:
        section, _ = lr_schedules.get_config_from_args(parser.parse_args(["--lr_schedule", name]))
        if "Decay" in name or "Cosine" in name:
            section["params"]["total_num_steps"] = 2000  # of which there is no option
        _engine, *_, schedule = start(1, scheduler=section)
        assert type(schedule).__name__ == name


def case_a_loss_scaler_is_always_current() -> None:
    engine, optimizer, *_ = start(1, **FP16)
    scaler = optimizer.loss_scaler
    assert optimizer.needs_scaler()
    assert scaler.dynamic
    assert (optimizer.dtype, optimizer.clip_grad) == (torch.float16, 1.0)
    optimizer.set_lr(0.5)
    assert engine.get_lr() == [optimizer.get_lr()] == [0.5]
    assert (scaler.cur_scale, scaler.scale_window, scaler.cur_iter) == (16, 2, 0)
    for step in range(3):
        engine.backward(loss_of(engine, part_of(batch_of(step))))
        gradients = optimizer.averaged_gradients
        assert all(g.dtype == torch.float32 for group in gradients.values() for g in group)
        engine.step()
    assert (scaler.loss_scale, scaler.cur_scale, scaler.cur_iter) == (32, 32, 3)
    _, other, *_ = start(1, **FP16)
    other.load_state_dict(optimizer.state_dict())
    assert other.loss_scaler.cur_scale == 32
    raises(NotImplementedError, "_get_ckpt_name", engine._get_ckpt_name, "folder", "tag")
    assert (engine.sparse_tensor_module_names, engine.moe_layers) == (set(), [])
    assert engine.param_names[engine.module.embedding.weight] == "embedding.weight"


def case_parameters_made_later_are_sharded_like_others() -> None:
    with deepspeed.zero.Init(config_dict_or_path=config(3)):
        model = make()
    model.blocks[1] = make(seed=RANK).blocks[1]  # values are those of rank 0
    first, later = next(model.parameters()), list(model.blocks[1].parameters())
    first.convert_to_zero_parameters([first, *later])
    assert {parameter.numel() for parameter in later} == {0}
    engine, *_ = start(3, model)
    expected, *_ = start(3)
    assert_same(train(engine), train(expected))
    text = "call it before deepspeed.initialize"
    raises(RuntimeError, text, next(model.parameters()).convert_to_zero_parameters, later)


def case_attributes_of_partitioned_parameters() -> None:
    engine, *_ = start(3)
    weight = engine.module.head.weight
    assert weight.ds_secondary_tensor is None  # without zero_hpz_partition_size, as there
    summary = weight.ds_summary()
    assert (summary["id"], summary["status"]) == (weight.ds_id, "NOT_AVAILABLE")
    assert (summary["numel"], summary["ds_shape"]) == (0, tuple(weight.ds_shape))
    raises(AttributeError, "no partition_gradients: backward", lambda: weight.partition_gradients)
    parameters = list(engine.module.parameters())
    parameters[0].all_gather_coalesced(parameters).wait()
    assert [p.shape for p in parameters] == [p.ds_shape for p in parameters]
    weight.partition(parameters)
    assert {p.numel() for p in parameters} == {0}
    assert not hasattr(torch.nn.Parameter(torch.ones(1)), "ds_secondary_tensor")
    engine, *_ = start(3, zero_optimization={"stage": 3, "zero_hpz_partition_size": 2})
    weight = engine.module.head.weight
    raises(NotImplementedError, "GatheredParameters makes", lambda: weight.ds_secondary_tensor)
    groups.has_secondary_partitions = False


SECTION = {"enabled": True, "max_train_batch_size": 100, "micro_batch_sizes": [4, 6]}


def batches(world_size: int = 0, micro: bool = False, **section: object) -> tuple:
    config = {"elasticity": SECTION | section}
    return compute_elastic_config(config, "0.19.7", world_size, return_microbatch=micro)


def case_batches_are_deepspeeds() -> None:
    """What compute_elastic_config of DeepSpeed 0.19.7 returned; tests/config has many more."""
    known = {"max_train_batch_size": 10000, "micro_batch_sizes": [8, 12, 16, 17], "version": 0.1}
    known |= {"min_gpus": 32, "max_gpus": 1500}
    batch, sizes = batches(**known)
    assert (batch, len(sizes), sizes[0], sizes[-1]) == (9792, 23, 32, 1224)
    assert batches(64, **known)[2] == 17
    assert batches(7, version=0.2) == (84, [7], 6)
    with mock.patch.dict(os.environ, WORLD_SIZE="7"):
        assert batches(version=0.2) == (84, [7])
        for larger, micro in ((True, 6), (False, 4)):
            given = {"version": 0.2, "prefer_larger_batch": larger}
            assert batches(micro=True, **given) == (84, [7], micro)
    known = {"max_train_batch_size": 64, "micro_batch_sizes": [4, 8], "version": 0.2}
    known |= {"min_gpus": 16, "max_gpus": 16, "num_gpus_per_node": 8}
    with mock.patch.dict(os.environ, WORLD_SIZE="16"):
        for divided, found in ((1, 4), (2, 8)):  # of 64 samples each of 16 ranks, of 8
            batch, _, micro = batches(micro=True, model_parallel_size=divided, **known)
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
    names = set(deepspeed.elasticity.config.__all__)
    assert {"ElasticityConfig", "MIN_TIME", "compute_elastic_config"} <= names
    assert not {"Any", "DeepSpeedConfigError", "logger", "placeholder"} & names
    assert json.loads(repr(config)) == config.repr()
    assert not elasticity_enabled({})


def case_an_engine_has_the_batch_of_its_ranks() -> None:
    section = SECTION | {"version": 0.1}
    given = {"elasticity": section, "train_batch_size": 3}
    model = torch.nn.Linear(2, 2)
    refuses("/train_batch_size", initialize, model, config=given)
    raises(ElasticityError, "computes the batch", begin, model=model, config=given)
    section["ignore_non_elastic_batch_info"] = True
    batch, _, micro = compute_elastic_config(given, "0.19.7", WORLD_SIZE)
    for make_engine in (initialize, begin):
        engine, *_ = make_engine(model=torch.nn.Linear(2, 2), config=given)
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
        initialize(model, config=given)
