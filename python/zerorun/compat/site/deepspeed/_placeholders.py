"""Placeholders for names of DeepSpeed that zerorun does not have."""

from typing import Any


def message(name: str) -> str:
    """Why `name` fails, and what to use."""
    return (
        f"{name} is not part of zerorun, which stands in for DeepSpeed here: {hint_of(name)} "
        "(ZERORUN_COMPAT=0 runs the script with an installed DeepSpeed)"
    )


class AbsentAttributeError(AttributeError, NotImplementedError):
    """Raised for an attribute that DeepSpeed has and zerorun does not: hasattr tells the truth."""


class _Absent(type):
    """The class of a name that is not there: importable, subclassable, not usable."""

    def __call__(cls, *_args: Any, **_kwargs: Any) -> Any:
        absent = next(base for base in reversed(cls.__mro__) if isinstance(base, _Absent))
        raise NotImplementedError(message(f"{absent.__module__}.{absent.__qualname__}"))

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise AbsentAttributeError(message(f"{cls.__module__}.{cls.__qualname__}.{name}"))

    def _refuse(cls, *_args: Any) -> Any:
        cls()

    __iter__ = __len__ = __getitem__ = __contains__ = __enter__ = __exit__ = _refuse


def placeholder(name: str) -> type:
    """A class that raises NotImplementedError when it is called or looked into."""
    module, _, last = name.rpartition(".")
    return _Absent(last, (), {"__module__": module})


def is_placeholder(value: object) -> bool:
    return isinstance(value, _Absent) or getattr(value, "_is_absent", False) is True


def absent_method(name: str) -> Any:
    """A method that raises NotImplementedError when it is called."""

    def method(*_args: Any, **_kwargs: Any) -> Any:
        raise NotImplementedError(message(name))

    method.__name__ = name.rpartition(".")[2]
    method.__qualname__ = name
    method._is_absent = True  # type: ignore[attr-defined]
    return method


# --- the nearest thing that works, for names of DeepSpeed that zerorun does not have ---

# By the beginning of a name without the package's; the longest that fits counts.
_HINTS = {
    "": "zerorun is ZeRO stages 0 to 3 with offloading, from deepspeed.initialize",
    "accelerator": "ranks run on CPUs or CUDA GPUs; deepspeed.get_accelerator() is the one in use",
    "autotuning": "`zerorun plan --model SIZE --world_size N` prints the memory of each stage",
    "checkpoint": "any stage and number of ranks loads what another saved, without conversion; "
    "python -m zerorun.consolidate writes Hugging Face's files",
    "comm": "torch.distributed has it, with the group that deepspeed.init_distributed makes",
    "compile": "engine.compile() is torch.compile, at every stage",
    "compression": "torch.ao.quantization works on the model that training leaves",
    "datastates": "engine.save_checkpoint is complete or not there, and fails on every rank alike",
    "default_inference_config": "zerorun trains; save the model with engine.save_16bit_model for "
    "an inference server",
    "elasticity": "`zerorun --elastic_training` starts a job again on the hosts that are left",
    "env_report": "the command `zerorun env` reports the environment",
    "inference": "zerorun trains; for inference use the model in zero.GatheredParameters, or "
    "save it with engine.save_16bit_model for an inference server",
    "init_inference": "zerorun trains; use the model in zero.GatheredParameters, or save it with "
    "engine.save_16bit_model for an inference server",
    "io": "engine.save_checkpoint writes from all ranks at once",
    "launcher": "the command `zerorun` (also as `deepspeed`) starts the ranks of a job",
    "launcher.multinode_runner": "the command `zerorun --hostfile FILE --launcher NAME` (ssh, "
    "pdsh, slurm, openmpi) starts the ranks of several hosts",
    "linear": "peft's LoRA layers train under ZeRO as they are",
    "model_implementations": "transformers' own models train under ZeRO as they are",
    "module_inject": "transformers' own models train under ZeRO stage 3 in place of tensor slicing",
    "moe": "deepspeed.moe.layer.MoE(hidden_size, expert, num_experts, ep_size); mixtures of "
    "experts of transformers train under ZeRO as they are",
    "monitor": "deepspeed.monitor.monitor.MonitorMaster, or engine.monitor",
    "nvme": "`zerorun bench nvme` measures a disk as NVMe offload uses it",
    "ops": "zerorun's kernels are compiled into it: nothing is built at run time",
    "ops.adam": "ops.adam.FusedAdam and DeepSpeedCPUAdam, or torch.optim.AdamW, run on the fused "
    "kernel",
    "ops.aio": "offload_optimizer and offload_param with device nvme read and write files "
    "themselves",
    "ops.random_ltd": "drop tokens in the model's own forward",
    "ops.transformer": "torch.nn.functional.scaled_dot_product_attention is fused attention",
    "pipe": "ZeRO stage 3 shards the layers that a pipeline would place",
    "profiling": "deepspeed.profiling.flops_profiler.get_model_profile, or torch.profiler",
    "runtime.activation_checkpointing": "deepspeed.checkpointing.checkpoint, which is "
    "torch.utils.checkpoint's",
    "runtime.bf16_optimizer": "bf16 with fp32 masters is what stages 0 to 3 do with bf16.enabled",
    "runtime.checkpoint_engine": "engine.save_checkpoint and load_checkpoint",
    "runtime.comm": "gradients are reduced in the dtype of communication_data_type",
    "runtime.config": "the configuration is read by deepspeed.initialize and checked by "
    "`zerorun config check FILE`",
    "runtime.config_utils": "runtime.config_utils.DeepSpeedConfigModel is the base of models of "
    "configurations",
    "runtime.compiler": "engine.compile() is torch.compile, at every stage",
    "runtime.data_pipeline": "give initialize a data loader or sampler of your own; "
    "data_pipeline.curriculum_scheduler.CurriculumScheduler says how hard its data may be",
    "runtime.data_pipeline.data_routing": "drop tokens in the model's own forward",
    "runtime.domino": "ZeRO stage 3 shards what tensor parallelism would",
    "runtime.eigenvalue": "torch.func has Hessian-vector products",
    "runtime.engine": "torch.distributed reduces tensors of your own; the engine's are reduced "
    "by backward and step",
    "runtime.engine.DeepSpeedEngine._get": "save_checkpoint and load_checkpoint; the files are "
    "zerorun's own",
    "runtime.fp16": "fp16 with dynamic loss scaling is what stages 0 to 3 do with fp16.enabled",
    "runtime.hybrid_engine": "generate in zero.GatheredParameters(model.parameters())",
    "runtime.keep_in_fp32": "data_types.keep_in_fp32_modules of the configuration keeps buffers in "
    "fp32; parameters have fp32 masters",
    "runtime.lr_schedules": "the five schedules, in the configuration or as classes",
    "runtime.model_checkpointing": "engine.save_checkpoint and load_checkpoint",
    "runtime.pipe": "ZeRO stage 3 shards the layers that a pipeline would place",
    "runtime.precision_config": "bf16.enabled and fp16.enabled of the configuration",
    "runtime.progressive_layer_drop": "skip layers in the model's own forward",
    "runtime.python_gc": "Python's gc.disable(), gc.collect() and gc.freeze()",
    "runtime.quantize": "torch.ao.quantization works on the model that training leaves",
    "runtime.rollout": "generate in zero.GatheredParameters(model.parameters())",
    "runtime.sequence_parallel.ulysses_sp": "ulysses_sp.sequence_tiled_compute, TiledMLP and "
    "TiledFusedLogitsLoss compute in tiles",
    "runtime.state_dict_factory": "engine.load_checkpoint, and `zerorun ckpt import` for "
    "checkpoints of other programs",
    "runtime.superoffload": "offload_optimizer with device cpu overlaps updates with backward",
    "runtime.swap_tensor": "offload_optimizer and offload_param with device nvme",
    "runtime.tensor_parallel": "torch's parallelize_module, with zerorun as the data-parallel side "
    "(deepspeed.initialize(mesh_param=device_mesh)), or Megatron's layers (mpu=)",
    "runtime.torch_autocast": "the section torch_autocast of the configuration, or torch.autocast "
    "around the loop",
    "runtime.utils": "torch and torch.distributed; the norm of a step is "
    "engine.get_global_grad_norm()",
    "runtime.weight_quantizer": "torch.ao.quantization works on the model that training leaves",
    "runtime.zenflow": "offload_optimizer with device cpu overlaps updates with backward",
    "runtime.zero": "deepspeed.initialize with zero_optimization.stage 0 to 3",
    "runtime.zero.offload_states": "engine.offload_states() and engine.reload_states() move "
    "masters and optimizer states between a GPU and its host",
    "runtime.zero.mics": "zero.Init and stage 3",
    "runtime.zero.muon": 'the optimizer {"type": "Muon"} of the configuration',
    "runtime.zero.stage3": "the optimizer that deepspeed.initialize returns at stage 3",
    "runtime.zero.stage_1_and_2": "the optimizer that deepspeed.initialize returns at stages 0 "
    "to 2",
    "sequence": "runtime.sequence_parallel.ulysses_sp.UlyssesSPAttentionHF, or "
    "sequence.layer.DistributedAttention around an attention of your own",
    "sequence.cross_entropy": "runtime.sequence_parallel.ulysses_sp.TiledFusedLogitsLoss computes "
    "a loss in tiles",
    "sequence.fpdt_layer": "sequence.layer.DistributedAttention, with activation checkpointing",
    "sequence.linear_cross_entropy": "runtime.sequence_parallel.ulysses_sp.TiledFusedLogitsLoss "
    "computes a loss in tiles",
    "sequence.vocab_parallel_ops": "torch's parallelize_module, with zerorun as the data-parallel "
    "side (deepspeed.initialize(mesh_param=device_mesh))",
    "tp_model_init": "ZeRO stage 3 shards what tensor parallelism would: leave tensor_parallel out",
    "utils.comms_logging": "comms_logger in the configuration, then deepspeed.comm.log_summary()",
    "utils.debug": "engine.module.named_parameters() has the names, and safe_get_full_fp32_param "
    "and the others the values",
    "utils.groups": "torch.distributed.new_group makes groups; initialize takes them as an mpu",
    "utils.logging": "Python's logging, with the logger deepspeed.utils.logger",
    "utils.mixed_precision_linkage": "utils.safe_get_full_fp32_param and the others reach masters",
    "utils.numa": "the launcher binds every rank to cores itself; --bind_core_list restricts them",
    "utils.pin_memory": "torch's Tensor.pin_memory()",
    "utils.pin_memory_tracker": "torch's Tensor.pin_memory()",
    "utils.static_cache": "transformers' StaticCache",
    "utils.tensor_fragment": "utils.safe_get_full_fp32_param and the others reach masters, "
    "gradients and states",
    "utils.timer": "utils.timer.SynchronizedWallClockTimer, or torch.cuda.Event",
    "utils.z3_leaf_module": "leaf_module of the configuration, or utils.set_z3_leaf_modules",
    "utils.zero_to_fp32": "utils.zero_to_fp32.convert_zero_checkpoint_to_state_dict, or python -m "
    "zerorun.consolidate",
}


def hint_of(name: str) -> str:
    """For the full name of a module, function, class or member."""
    parts = name.removeprefix("deepspeed.").split(".")
    for end in range(len(parts), -1, -1):
        hint = _HINTS.get(".".join(parts[:end]))
        if hint is not None:
            return hint
    raise AssertionError("there is a hint for the empty name")
