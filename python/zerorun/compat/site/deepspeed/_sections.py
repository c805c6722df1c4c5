"""Which keys of a configuration the classes of its sections stand for."""

# By the class's full name without the package's.
SECTIONS = {
    "comm.config.CommsLoggerConfig": "/comms_logger",
    "monitor.config.CSVConfig": "/csv_monitor",
    "monitor.config.CometConfig": "/comet",
    "monitor.config.TensorBoardConfig": "/tensorboard",
    "monitor.config.WandbConfig": "/wandb",
    "profiling.config.DeepSpeedFlopsProfilerConfig": "/flops_profiler",
    "runtime.activation_checkpointing.config.DeepSpeedActivationCheckpointingConfig": (
        "/activation_checkpointing"
    ),
    "runtime.precision_config.DeepSpeedBF16Config": "/bf16",
    "runtime.precision_config.DeepSpeedFP16Config": "/fp16",
    "runtime.zero.config.DeepSpeedZeroConfig": "/zero_optimization",
    "runtime.zero.leaf_module_config.DeepSpeedZeroLeafModuleConfig": (
        "/zero_optimization/leaf_module"
    ),
    "runtime.zero.offload_config.DeepSpeedZeroOffloadOptimizerConfig": (
        "/zero_optimization/offload_optimizer"
    ),
    "runtime.zero.offload_config.DeepSpeedZeroOffloadParamConfig": (
        "/zero_optimization/offload_param"
    ),
}
# Of these DeepSpeed reads the keys that it knows, whatever else is there.
UNCHECKED = {
    "activation_checkpointing",
    "aio",
    "checkpoint",
    "data_types",
    "elasticity",
    "flops_profiler",
    "torch_autocast",
}
