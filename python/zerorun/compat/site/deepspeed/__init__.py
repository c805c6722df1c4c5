"""The names of DeepSpeed 0.19, served by zerorun.

This package comes first on the path when zerorun's compatibility is active, and only then. What
zerorun does not have imports as a placeholder and raises NotImplementedError when it is used.
Importing it loads neither PyTorch nor the core.
"""

import importlib
from typing import Any

from deepspeed import _placeholders

__version__ = "0.19.8+zerorun"
__version_major__, __version_minor__, __version_patch__ = 0, 19, 8
version = __version__

# The modules that hold names of this package; None: the submodule of that name.
_LAZY = {
    "DeepSpeedConfig": "deepspeed.runtime.config",
    "DeepSpeedConfigError": "deepspeed.runtime.config",
    "DeepSpeedEngine": "deepspeed.runtime.engine",
    "DeepSpeedOptimizer": "deepspeed.runtime.base_optimizer",
    "OnDevice": "deepspeed.utils",
    "accelerator": None,
    "add_config_arguments": "deepspeed._arguments",
    "checkpoint": None,
    "checkpointing": "deepspeed.runtime.activation_checkpointing",
    "comm": None,
    "dist": "deepspeed.comm",
    "get_accelerator": "deepspeed.accelerator",
    "init_distributed": "deepspeed.comm",
    "initialize": "deepspeed._initialize",
    "launcher": None,
    "log_dist": "deepspeed.utils.logging",
    "logger": "deepspeed.utils.logging",
    "ops": None,
    "runtime": None,
    "utils": None,
    "zero": "deepspeed.runtime",
}
_MODULES = {"checkpointing": "deepspeed.runtime.activation_checkpointing.checkpointing"}
_MODULES |= {"zero": "deepspeed.runtime.zero", "dist": "deepspeed.comm"}
_ABSENT = {
    "DeepSpeedHybridEngine",
    "DeepSpeedTransformerConfig",
    "DeepSpeedTransformerLayer",
    "InferenceEngine",
    "PipelineEngine",
    "PipelineModule",
    "add_tuning_arguments",
    "default_inference_config",
    "init_inference",
    "tp_model_init",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        value = importlib.import_module(_MODULES[name])
    elif name in _LAZY:
        module = _LAZY[name]
        if module is None:
            return importlib.import_module(f"deepspeed.{name}")
        value = getattr(importlib.import_module(module), name)
    elif name in _ABSENT:
        value = _placeholders.placeholder(f"deepspeed.{name}")
    elif name in _placeholders.PACKAGES:
        value = importlib.import_module(f"deepspeed.{name}")
    else:
        raise AttributeError(f"module 'deepspeed' (zerorun's) has no attribute '{name}'")
    globals()[name] = value
    return value


_placeholders.install()
