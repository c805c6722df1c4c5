"""Writes data/deepspeed_keys.json: keys and defaults of a ds_config.json, out of DeepSpeed itself.

Usage: DS_ACCELERATOR=cpu python tests/config/make_deepspeed_keys.py
Blocks that DeepSpeed declares as models are read from these, other keys from its constants.
"""

import json
from enum import Enum
from pathlib import Path

import deepspeed
from deepspeed.comm.config import CommsLoggerConfig
from deepspeed.compile.config import CompileConfig
from deepspeed.monitor import config as monitor
from deepspeed.profiling import constants as profiling
from deepspeed.runtime import constants, precision_config
from deepspeed.runtime.activation_checkpointing import config as activation
from deepspeed.runtime.swap_tensor import constants as swap
from deepspeed.runtime.zenflow.zenflow_config import ZenFlowConfig
from deepspeed.runtime.zero import config as zero
from deepspeed.runtime.zero import offload_config as offload
from deepspeed.utils.config import DeepSpeedThroughputTimerConfig

MODELS = {
    "/zero_optimization": zero.DeepSpeedZeroConfig,
    "/zero_optimization/offload_param": offload.DeepSpeedZeroOffloadParamConfig,
    "/zero_optimization/offload_optimizer": offload.DeepSpeedZeroOffloadOptimizerConfig,
    "/zero_optimization/zenflow": ZenFlowConfig,
    "/bf16": precision_config.DeepSpeedBF16Config,
    "/fp16": precision_config.DeepSpeedFP16Config,
    "/tensorboard": monitor.TensorBoardConfig,
    "/csv_monitor": monitor.CSVConfig,
    "/wandb": monitor.WandbConfig,
    "/comet": monitor.CometConfig,
    "/comms_logger": CommsLoggerConfig,
    "/compile": CompileConfig,
    "/timers/throughput": DeepSpeedThroughputTimerConfig,
}

# Modules whose constants NAME = "key" and NAME_DEFAULT = value describe a block.
CONSTANTS = {
    "/activation_checkpointing": (activation, "ACT_CHKPT_"),
    "/flops_profiler": (profiling, "FLOPS_PROFILER_"),
    "/aio": (swap, "AIO_"),
}

TOP_LEVEL = [
    "TRAIN_BATCH_SIZE",
    "TRAIN_MICRO_BATCH_SIZE_PER_GPU",
    "GRADIENT_ACCUMULATION_STEPS",
    "STEPS_PER_PRINT",
    "GRADIENT_CLIPPING",
    "COMMUNICATION_DATA_TYPE",
    "SEQ_PARALLEL_COMMUNICATION_DATA_TYPE",
    "PRESCALE_GRADIENTS",
    "GRADIENT_PREDIVIDE_FACTOR",
    "GRADIENT_ALLREDUCE_OP",
    "DISABLE_ALLGATHER",
    "DUMP_STATE",
    "VOCABULARY_SIZE",
    "WALL_CLOCK_BREAKDOWN",
    "MEMORY_BREAKDOWN",
    "ZERO_ALLOW_UNTESTED_OPTIMIZER",
    "ZERO_FORCE_DS_CPU_OPTIMIZER",
    "DATALOADER_DROP_LAST",
    "USE_DATA_BEFORE_EXPERT_PARALLEL",
    "MANAGED_GRADIENT_ACCUMULATION",
]


def plain(value: object) -> object:
    if isinstance(value, Enum):
        return plain(value.value)
    return value if value is None or isinstance(value, bool | int | float | str | list) else ...


def model_keys(block: str, model: type) -> dict:
    keys = {}
    for name, field in model.model_fields.items():
        default = plain(field.get_default(call_default_factory=True))
        keys[f"{block}/{field.alias or name}"] = default
        keys[f"{block}/{name}"] = default
    return keys


def constant_keys(block: str, module: object, prefix: str) -> dict:
    keys = {}
    for name, key in vars(module).items():
        if name.startswith(prefix) and isinstance(key, str) and hasattr(module, f"{name}_DEFAULT"):
            keys[f"{block}/{key}"] = plain(getattr(module, f"{name}_DEFAULT"))
    return keys


def main() -> None:
    keys = {}
    for name in TOP_LEVEL:
        keys[f"/{getattr(constants, name)}"] = plain(getattr(constants, f"{name}_DEFAULT"))
    for block, model in MODELS.items():
        keys |= model_keys(block, model)
    for block, (module, prefix) in CONSTANTS.items():
        keys |= constant_keys(block, module, prefix)
    keys = {key: value for key, value in keys.items() if value is not ...}
    path = Path(__file__).parent / "data" / "deepspeed_keys.json"
    path.parent.mkdir(exist_ok=True)
    contents = {"made_with": f"deepspeed {deepspeed.__version__}", "keys": keys}
    path.write_text(json.dumps(contents, indent=0) + "\n")


if __name__ == "__main__":
    main()
