"""The nearest thing that works, for names of DeepSpeed that zerorun does not have."""

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
    "launcher": "the command `zerorun` (also as `deepspeed`) starts the ranks of this host",
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
    "ops.op_builder": "zerorun's kernels are compiled into it: nothing is built at run time",
    "ops.transformer": "torch.nn.functional.scaled_dot_product_attention is fused attention",
    "pipe": "ZeRO stage 3 shards the layers that a pipeline would place",
    "profiling": "deepspeed.profiling.flops_profiler.get_model_profile, or torch.profiler",
    "runtime.activation_checkpointing": "deepspeed.checkpointing.checkpoint, which is "
    "torch.utils.checkpoint's",
    "runtime.bf16_optimizer": "bf16 with fp32 masters is what stages 0 to 3 do with bf16.enabled",
    "runtime.checkpoint_engine": "engine.save_checkpoint and load_checkpoint",
    "runtime.comm": "gradients are reduced in the dtype of communication_data_type",
    "runtime.compiler": "engine.compile() is torch.compile, at every stage",
    "runtime.data_pipeline": "give initialize a data loader or sampler of your own; "
    "data_pipeline.curriculum_scheduler.CurriculumScheduler says how hard its data may be",
    "runtime.domino": "ZeRO stage 3 shards what tensor parallelism would",
    "runtime.eigenvalue": "torch.func has Hessian-vector products",
    "runtime.engine": "torch.distributed reduces tensors of your own; the engine's are reduced "
    "by backward and step",
    "runtime.fp16": "fp16 with dynamic loss scaling is what stages 0 to 3 do with fp16.enabled",
    "runtime.hybrid_engine": "generate in zero.GatheredParameters(model.parameters())",
    "runtime.lr_schedules": "the five schedules, in the configuration or as classes",
    "runtime.pipe": "ZeRO stage 3 shards the layers that a pipeline would place",
    "runtime.progressive_layer_drop": "skip layers in the model's own forward",
    "runtime.quantize": "torch.ao.quantization works on the model that training leaves",
    "runtime.rollout": "generate in zero.GatheredParameters(model.parameters())",
    "runtime.sequence_parallel.ulysses_sp": "ulysses_sp.sequence_tiled_compute, TiledMLP and "
    "TiledFusedLogitsLoss compute in tiles",
    "runtime.superoffload": "offload_optimizer with device cpu overlaps updates with backward",
    "runtime.swap_tensor": "offload_optimizer and offload_param with device nvme",
    "runtime.tensor_parallel": "torch's parallelize_module, with zerorun as the data-parallel side "
    "(deepspeed.initialize(mesh_param=device_mesh)), or Megatron's layers (mpu=)",
    "runtime.zenflow": "offload_optimizer with device cpu overlaps updates with backward",
    "runtime.zero": "deepspeed.initialize with zero_optimization.stage 0 to 3",
    "runtime.zero.mics": "zero.Init and stage 3",
    "runtime.zero.muon": 'the optimizer {"type": "Muon"} of the configuration',
    "runtime.zero.offload_states": "engine.offload_states() and reload_states(); states of CPU "
    "ranks are always in host memory",
    "runtime.zero.stage3": "the optimizer that deepspeed.initialize returns at stage 3",
    "runtime.zero.stage_1_and_2": "the optimizer that deepspeed.initialize returns at stages 0 "
    "to 2",
    "tp_model_init": "ZeRO stage 3 shards what tensor parallelism would: leave tensor_parallel out",
    "utils.groups": "torch.distributed.new_group makes groups; initialize takes them as an mpu",
    "utils.logging": "Python's logging, with the logger deepspeed.utils.logger",
    "utils.tensor_fragment": "utils.safe_get_full_fp32_param and the others reach masters, "
    "gradients and states",
}


def hint_of(name: str) -> str:
    """For the full name of a module, function, class or member."""
    parts = name.removeprefix("deepspeed.").split(".")
    for end in range(len(parts), -1, -1):
        hint = _HINTS.get(".".join(parts[:end]))
        if hint is not None:
            return hint
    raise AssertionError("there is a hint for the empty name")
