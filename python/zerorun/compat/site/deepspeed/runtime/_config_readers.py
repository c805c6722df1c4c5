"""Functions that read one thing from a configuration's dictionary, as DeepSpeed's are called."""

import enum
import json
from collections.abc import Callable, Mapping
from typing import Any

import torch

from deepspeed.runtime import constants
from deepspeed.runtime._config_errors import DeepSpeedConfigError

DEEPSPEED_OPTIMIZERS = [
    "adagrad",
    "adam",
    "adamw",
    "lamb",
    "muadam",
    "muadamw",
    "musgd",
    "lion",
    "muon",
]
_SPELLINGS = {"half": "float16", "float": "float32", "fp16": "float16", "fp32": "float32"}


class DtypeEnum(enum.Enum):
    """PyTorch's dtype for any of its names in a configuration; KeyError for others."""

    fp16 = torch.float16
    fp32 = torch.float32
    bf16 = torch.bfloat16
    int8 = torch.int8

    @classmethod
    def _missing_(cls, value: object) -> "DtypeEnum":
        name = str(value).removeprefix("torch.")
        name = _SPELLINGS.get(name, "bfloat16" if name == "bf16" else name)
        found = {str(member.value).removeprefix("torch."): member for member in cls}
        if name not in found:
            raise KeyError(f"got dtype {value!r}, expected one of {', '.join(found)}")
        return found[name]


class DeepSpeedConfigWriter:
    """A configuration that a program puts together and writes as a file."""

    def __init__(self, data: dict[str, Any] | None = None) -> None:
        self.data = {} if data is None else data

    def add_config(self, key: str, value: Any) -> None:
        self.data[key] = value

    def load_config(self, filename: str) -> None:
        from deepspeed.runtime.config_utils import dict_raise_error_on_duplicate_keys

        with open(filename, encoding="utf-8") as file:
            self.data = json.load(file, object_pairs_hook=dict_raise_error_on_duplicate_keys)

    def write_config(self, filename: str) -> None:
        with open(filename, "w", encoding="utf-8") as file:
            json.dump(self.data, file)


Settings = Mapping[str, Any]


def _reader(name: str) -> Callable[[Settings], Any]:
    def read(param_dict: Settings) -> Any:
        """A key of the top level, or its default."""
        key = getattr(constants, name.upper())
        return param_dict.get(key, getattr(constants, f"{name.upper()}_DEFAULT"))

    return read


def _part_reader(section: str, key: str, default: Any = None) -> Callable[[Settings], Any]:
    def read(param_dict: Settings) -> Any:
        """A key of a section, or its default."""
        return (param_dict.get(section) or {}).get(key, default)

    return read


for _name in (
    "dataloader_drop_last",
    "disable_allgather",
    "disable_python_gc",
    "dump_state",
    "gradient_accumulation_steps",
    "gradient_clipping",
    "gradient_predivide_factor",
    "log_level",
    "managed_gradient_accumulation",
    "memory_breakdown",
    "prescale_gradients",
    "steps_per_print",
    "train_batch_size",
    "train_micro_batch_size_per_gpu",
    "wall_clock_breakdown",
    "zero_allow_untested_optimizer",
    "zero_force_ds_cpu_optimizer",
):
    globals()[f"get_{_name}"] = _reader(_name)
for _function, *_of in (
    ("get_optimizer_name", "optimizer", "type"),
    ("get_optimizer_params", "optimizer", "params"),
    ("get_optimizer_legacy_fusion", "optimizer", "legacy_fusion", False),
    ("get_scheduler_name", "scheduler", "type"),
    ("get_scheduler_params", "scheduler", "params"),
    ("get_torch_autocast_enabled", "torch_autocast", "enabled", False),
):
    globals()[_function] = _part_reader(*_of)


def _chosen(name: str, value: str, known: Mapping[str, Any]) -> Any:
    if value.lower() not in known:
        raise DeepSpeedConfigError(f"/{name}: got {value!r}, expected one of {', '.join(known)}")
    return known[value.lower()]


def get_communication_data_type(
    param_dict: Settings,
    comm_type: str = "communication_data_type",
    comm_data_type_default: str | None = None,
) -> torch.dtype | None:
    """None where the parameters' dtype decides."""
    value = param_dict.get(comm_type, comm_data_type_default)
    kinds = ("fp32", "fp16", "bf16")
    return value and _chosen(comm_type, value, {kind: DtypeEnum(kind).value for kind in kinds})


def get_gradient_allreduce_op(param_dict: Settings) -> str:
    value = param_dict.get("gradient_allreduce_op", "mean")
    return _chosen("gradient_allreduce_op", str(value).lower(), {"mean": "mean", "sum": "sum"})


def get_torch_autocast_dtype(param_dict: Settings) -> torch.dtype | None:
    name = (param_dict.get("torch_autocast") or {}).get("dtype")
    try:
        return name and DtypeEnum(name).value
    except KeyError as error:
        raise DeepSpeedConfigError(f"/torch_autocast/dtype: {error.args[0]}") from None


def get_lower_precision_safe_modules(param_dict: Settings) -> list[str] | None:
    names = (param_dict.get("torch_autocast") or {}).get("lower_precision_safe_modules")
    if names is not None and not all(isinstance(name, str) for name in names):
        raise DeepSpeedConfigError(
            f"/torch_autocast/lower_precision_safe_modules: got {names}, expected names of classes"
        )
    return names


def get_optimizer_gradient_clipping(param_dict: Settings) -> float | None:
    params = (param_dict.get("optimizer") or {}).get("params") or {}
    return params.get("max_grad_norm")


def get_checkpoint_params(param_dict: Settings) -> dict[str, Any]:
    return param_dict.get("checkpoint", {})


def get_data_types_params(param_dict: Settings) -> dict[str, Any]:
    return param_dict.get("data_types", {})


def get_checkpoint_tag_validation_mode(checkpoint_params: Settings) -> str:
    modes = {"warn": "WARN", "ignore": "IGNORE", "fail": "FAIL"}
    return _chosen(
        "checkpoint/tag_validation", checkpoint_params.get("tag_validation", "WARN"), modes
    )


def get_checkpoint_parallel_write_pipeline(checkpoint_params: Settings) -> bool:
    value = checkpoint_params.get("parallel_write", {}).get("pipeline_stage", False)
    if not isinstance(value, bool):
        raise DeepSpeedConfigError(
            f"/checkpoint/parallel_write/pipeline_stage: got {value!r}, expected true or false"
        )
    return value


def get_expert_data_topo_config(param_dict: Settings) -> bool:
    return param_dict.get("use_data_before_expert_parallelism", False)


def get_pipeline_config(param_dict: Settings) -> dict[str, Any]:
    """DeepSpeed's defaults for `pipeline`, and what is given of it."""
    return {
        "stages": "auto",
        "partition": "best",
        "seed_layers": False,
        "activation_checkpoint_interval": 0,
        "pipe_partitioned": True,
        "grad_partitioned": True,
        **param_dict.get("pipeline", {}),
    }
