"""Values that scripts read of DeepSpeed's modules, sections and objects without calling them."""

import argparse
from pathlib import Path

import deepspeed
import pydantic
import torch
import zerorun
from deepspeed.runtime.zero.config import DeepSpeedZeroConfig
from deepspeed.runtime.zero.offload_config import DeepSpeedZeroOffloadOptimizerConfig
from deepspeed.utils import groups

from cases.compat import start
from cases.models import RANK, WORLD_SIZE, batch_of, config, loss_of, part_of, raises

FP16 = {"fp16": {"enabled": True, "initial_scale_power": 4, "loss_scale_window": 2}}


def case_values_of_a_section_that_follow_from_others() -> None:
    assert [DeepSpeedZeroConfig(stage=stage).overlap_comm for stage in (0, 2, 3)] == [
        False,
        False,
        True,
    ]
    assert not DeepSpeedZeroConfig(stage=3, overlap_comm=False).overlap_comm
    older = DeepSpeedZeroConfig(cpu_offload=True).offload_optimizer
    assert isinstance(older, DeepSpeedZeroOffloadOptimizerConfig)
    assert DeepSpeedZeroConfig().offload_param is None
    assert DeepSpeedZeroConfig(cpu_offload_param=True).offload_param.device == "cpu"
    pipelines = [DeepSpeedZeroOffloadOptimizerConfig(pipeline_write=flag) for flag in (True, False)]
    assert [section.pipeline for section in pipelines] == [True, False]


def case_sections_of_a_configuration_are_objects() -> None:
    zero = DeepSpeedZeroConfig(
        stage=3, stage3_prefetch_bucket_size=7, offload_optimizer={"device": "cpu"}
    )
    assert (zero.stage, zero.prefetch_bucket_size, zero.reduce_bucket_size) == (3, 7, 500000000)
    assert isinstance(zero.offload_optimizer, DeepSpeedZeroOffloadOptimizerConfig)
    assert zero.offload_optimizer.device == "cpu"
    assert zero.offload_optimizer.ratio == 1
    assert zero.model_dump(exclude_unset=True) == {
        "stage": 3,
        "overlap_comm": True,  # which follows from the stage
        "prefetch_bucket_size": 7,
        "offload_optimizer": {"device": "cpu"},
    }
    assert zero.model_dump(by_alias=True)["stage3_prefetch_bucket_size"] == 7
    for unknown in (lambda: setattr(zero, "stag", 1), lambda: DeepSpeedZeroConfig(stag=1)):
        raises(pydantic.ValidationError, "stag", unknown)
    raises(AttributeError, "stag", lambda: zero.stag)
    for key, value in (("stage", 9), ("reduce_bucket_size", None), ("sub_group_size", -1)):
        wrong = {key: value}
        raises(pydantic.ValidationError, key, DeepSpeedZeroConfig, **wrong)
        given = {"zero_optimization": {"stage": 1, **wrong}}
        for kind in (deepspeed.DeepSpeedConfigError, zerorun.ConfigError, AssertionError):
            raises(kind, f"/zero_optimization/{key}", start, 1, **given)
    leaves = DeepSpeedZeroConfig(leaf_module={"classes": "Block"}).leaf_module
    assert (leaves.classes, leaves.names) == (["Block"], [])
    settings = config(2, fp16={"enabled": False}, prescale_gradients=True)
    whole = deepspeed.DeepSpeedConfig(settings)
    assert whole.zero_config.stage == 2
    assert whole.float16_config.loss_scale_window == 1000
    assert whole.prescale_gradients is True
    assert whole.dump_state is False
    raises(AttributeError, "no_such_thing", lambda: whole.no_such_thing)


def case_which_operators_and_versions_there_are() -> None:
    from deepspeed.accelerator.cpu_accelerator import CPU_Accelerator
    from deepspeed.git_version_info import torch_info, version
    from deepspeed.ops.op_builder import CPUAdamBuilder
    from deepspeed.runtime.zero.config import DeepSpeedZeroOffloadParamConfig
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
    assert DeepSpeedZeroOffloadParamConfig.__name__ == "DeepSpeedZeroOffloadParamConfig"
    assert required_torch_version(min_version=2.0)
    assert not required_torch_version(max_version=1.9)
    assert parse_range_list("0,2-4") == [0, 2, 3, 4]
    raises(ValueError, "rising order", parse_range_list, "8,2-6")
    found = deepspeed.utils.groups._get_expert_parallel_ranks(8, 2, 2)
    assert found[0] == [[0, 2], [4, 6], [1, 3], [5, 7]]
    assert found[1] == [[0, 4], [2, 6], [1, 5], [3, 7]]


def case_schedules_are_chosen_on_the_command_line() -> None:
    from deepspeed.runtime import lr_schedules

    parser = lr_schedules.add_tuning_arguments(argparse.ArgumentParser())
    nothing = parser.parse_args([])
    assert lr_schedules.get_config_from_args(nothing)[0] is None
    chosen = parser.parse_args(["--lr_schedule", "WarmupLR", "--warmup_num_steps", "7"])
    section, error = lr_schedules.get_config_from_args(chosen)
    params = {"warmup_min_lr": 0, "warmup_max_lr": 0.001, "warmup_num_steps": 7}
    assert (section, error) == (
        {"type": "WarmupLR", "params": params | {"warmup_type": "log"}},
        None,
    )
    assert lr_schedules.get_lr_from_config(section) == (0.001, "")
    for name in lr_schedules.VALID_LR_SCHEDULES:
        section, _ = lr_schedules.get_config_from_args(parser.parse_args(["--lr_schedule", name]))
        if "Decay" in name or "Cosine" in name:
            section["params"]["total_num_steps"] = 2000  # of which there is no option
        _engine, *_, schedule = start(1, scheduler=section)
        assert type(schedule).__name__ == name


def case_readers_of_configurations() -> None:
    from deepspeed.runtime import precision_config

    assert precision_config.get_bfloat16_config({"bfloat16": {"enabled": True}}).enabled
    assert not precision_config.get_float16_config({}).enabled
    assert DeepSpeedZeroConfig().leaf_module.classes[0].endswith(".MixtralSparseMoeBlock")
    assert DeepSpeedZeroConfig(leaf_module={"classes": "A"}).leaf_module.classes == ["A"]
    older = DeepSpeedZeroConfig(stage3_gather_fp16_weights_on_model_save=True)
    assert older.gather_16bit_weights_on_model_save


def case_a_loss_scaler_is_always_current() -> None:
    engine, optimizer, *_ = start(1, **FP16)
    scaler = optimizer.loss_scaler
    assert optimizer.needs_scaler()
    assert (scaler.cur_scale, scaler.scale_window, scaler.cur_iter) == (16, 2, 0)
    for step in range(3):
        engine.backward(loss_of(engine, part_of(batch_of(step))))
        gradients = optimizer.averaged_gradients
        assert all(g.dtype == torch.float32 for group in gradients.values() for g in group)
        engine.step()
    assert (scaler.cur_scale, scaler.cur_iter) == (32, 3)
    _, other, *_ = start(1, **FP16)
    other.load_state_dict(optimizer.state_dict())
    assert other.loss_scaler.cur_scale == 32
    raises(NotImplementedError, "_get_ckpt_name", engine._get_ckpt_name, "folder", "tag")
    assert (engine.sparse_tensor_module_names, engine.moe_layers) == (set(), [])
    assert engine.param_names[next(engine.module.parameters())] in dict(
        engine.module.named_parameters()
    )


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
    engine.destroy()
    zero = {"stage": 3, "stage3_param_persistence_threshold": 0, "zero_hpz_partition_size": 2}
    if WORLD_SIZE == 2:
        engine, *_ = start(3, zero_optimization=zero)
        weight = engine.module.head.weight
        raises(NotImplementedError, "GatheredParameters makes", lambda: weight.ds_secondary_tensor)
        engine.destroy()
    groups.has_secondary_partitions = False


def case_ranks_that_name_different_tags(folder: Path) -> None:
    engine, *_ = start(1, checkpoint={"tag_validation": "FAIL"})

    def save() -> None:
        engine.save_checkpoint(folder, tag=f"tag{RANK}")

    if WORLD_SIZE > 1:
        raises(AssertionError, "checkpoint tags differ", save)
    else:
        save()


def case_elasticity_beside_batch_sizes_is_its_own_error() -> None:
    section = {"enabled": True, "max_train_batch_size": 4, "micro_batch_sizes": [1, 2]}
    kind = deepspeed.elasticity.config.ElasticityError
    raises(kind, "computes the batch", start, 1, train_batch_size=2, elasticity=section)
