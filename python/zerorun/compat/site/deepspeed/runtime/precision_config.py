"""The sections of 16-bit training."""

from collections.abc import Mapping
from typing import Any

from deepspeed.runtime.config_utils import section_class


def _section(param_dict: Mapping[str, Any], name: str, *keys: str) -> Any:
    given = next((param_dict[key] for key in keys if param_dict.get(key)), {})
    return section_class(f"runtime.precision_config.{name}")(**given)


def get_bfloat16_config(param_dict: Mapping[str, Any]) -> Any:
    return _section(param_dict, "DeepSpeedBF16Config", "bf16", "bfloat16")


def get_float16_config(param_dict: Mapping[str, Any]) -> Any:
    return _section(param_dict, "DeepSpeedFP16Config", "fp16")
