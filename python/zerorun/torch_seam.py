"""Every private name of PyTorch, transformers and bitsandbytes that zerorun relies on.

check() looks each of them up when an engine is made, so that a version which lacks one is an error
that names it instead of a gradient that is silently not clipped or a state dict without states.
Names of modules that are not loaded are looked up when an engine is made after their import.

The patches are in the modules that make them: torch's functions that clip (hooks/torch_clipping),
its norms (hooks/mixed_norms), its state dicts (checkpoints/torch_state_dicts), AveragedModel
(model/moving_averages), nn.Module within zero.Init (zero/init), and methods of the model and the
optimizer that a program passed (hooks/module_zero_grad, shards/given_optimizer).
"""

from __future__ import annotations

import importlib
import itertools
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from zerorun import _C

__all__ = [
    "LOAD_STATE_DICT_POST_HOOKS",
    "LOAD_STATE_DICT_PRE_HOOKS",
    "NAMES",
    "STATE_DICT_POST_HOOKS",
    "STATE_DICT_PRE_HOOKS",
    "STEP_POST_HOOKS",
    "STEP_PRE_HOOKS",
    "STEP_WAS_CALLED",
    "WRAPPED_BY_SCHEDULER",
    "PrivateName",
    "call_step_hooks",
    "check",
    "check_module",
    "hooks_of",
]

STEP_PRE_HOOKS = "_optimizer_step_pre_hooks"
STEP_POST_HOOKS = "_optimizer_step_post_hooks"
STATE_DICT_PRE_HOOKS = "_optimizer_state_dict_pre_hooks"
STATE_DICT_POST_HOOKS = "_optimizer_state_dict_post_hooks"
LOAD_STATE_DICT_PRE_HOOKS = "_optimizer_load_state_dict_pre_hooks"
LOAD_STATE_DICT_POST_HOOKS = "_optimizer_load_state_dict_post_hooks"
WRAPPED_BY_SCHEDULER = "_wrapped_by_lr_sched"
STEP_WAS_CALLED = "_opt_called"


@dataclass(frozen=True)
class PrivateName:
    """A name that its owner, a module or a class in it, has or declares; or, as an attribute that
    only instances have, which is in its code."""

    module: str
    owner: str  # within the module; "": the module itself
    name: str
    use: str
    seen: str = "torch 2.6, 2.11 and 2.13"
    in_code: bool = False

    def __str__(self) -> str:
        return ".".join(filter(None, (self.module, self.owner, self.name)))


def _each(module: str, owner: str, names: str, use: str, **more: Any) -> Iterator[PrivateName]:
    return (PrivateName(module, owner, name, use, **more) for name in names.split())


_TRANSFORMERS = {"seen": "transformers 5.23"}
_BITSANDBYTES = {"seen": "its source, not a GPU", "in_code": True}
_STEP = f"{STEP_PRE_HOOKS} {STEP_POST_HOOKS}"
_STATES = (
    f"{STATE_DICT_PRE_HOOKS} {STATE_DICT_POST_HOOKS} "
    f"{LOAD_STATE_DICT_PRE_HOOKS} {LOAD_STATE_DICT_POST_HOOKS}"
)
_PLACES = (
    "_get_model_state_dict _load_model_state_dict _get_optim_state_dict _load_optim_state_dict"
)
_OPTIMIZER = "torch.optim.optimizer"
_SCHEDULER = "torch.optim.lr_scheduler"
NAMES: tuple[PrivateName, ...] = tuple(
    itertools.chain(
        _each("torch.nn.modules.module", "Module", "_call_impl", "calls of modules under way"),
        _each("torch.nn.modules.module", "Module", "_parameters", "reads of empty parameters"),
        _each(
            "torch.nn.modules.module",
            "Module",
            "_buffers _modules _non_persistent_buffers_set",
            "models on the meta device",
        ),
        _each("torch.nn.modules.module", "", "_IncompatibleKeys", "set_model_state_dict"),
        _each("torch", "UntypedStorage", "_cdata", "views of gathered parameters"),
        _each("torch._C", "", "_current_graph_task_id", "the backward that is under way"),
        _each("torch._C", "", "_disabled_torch_function_impl", "ds_tensor"),
        _each("torch.autograd", "Variable", "_execution_engine", "the end of a backward"),
        _each("torch.utils.hooks", "RemovableHandle", "next_id", "one graph for equal blocks"),
        _each("torch.utils._pytree", "", "tree_map_only tree_leaves", "inputs of models"),
        _each("torch.utils._python_dispatch", "", "TorchDispatchMode", "optimizers on shards"),
        _each(_OPTIMIZER, "Optimizer", _STEP, "hooks of the program's optimizer"),
        _each(_OPTIMIZER, "Optimizer", _STATES, "hooks of the program's optimizer"),
        _each(
            _OPTIMIZER,
            "",
            "_global_optimizer_pre_hooks _global_optimizer_post_hooks",
            "hooks of all optimizers",
        ),
        _each(_SCHEDULER, "LRScheduler", STEP_WAS_CALLED, "schedulers", in_code=True),
        _each(_SCHEDULER, "LRScheduler", WRAPPED_BY_SCHEDULER, "schedulers", in_code=True),
        _each("torch._dynamo.eval_frame", "", "skip_code", "hooks in compiled code"),
        _each(
            "torch._dynamo.eval_frame",
            "OptimizedModule",
            "_orig_mod",
            "names of parameters",
            in_code=True,
        ),
        _each("torch.distributed.tensor", "DTensor", "_local_tensor", "this rank's piece"),
        _each("torch.distributed.distributed_c10d", "", "_get_default_store", "where ranks meet"),
        _each(
            "torch.distributed.checkpoint.state_dict",
            "",
            f"{_PLACES} _get_fqns _flatten_optim_state_dict",
            "get_state_dict and set_state_dict",
        ),
        _each(
            "transformers.modeling_utils",
            "PreTrainedModel",
            "_keep_in_fp32_modules",
            "buffers that stay fp32",
            **_TRANSFORMERS,
        ),
        _each(
            "transformers.modeling_utils",
            "",
            "ALL_ATTENTION_FUNCTIONS",
            "sequence parallelism",
            **_TRANSFORMERS,
        ),
        _each(
            "bitsandbytes.nn.modules",
            "Params4bit",
            "bnb_quantized quant_state",
            "4-bit weights",
            **_BITSANDBYTES,
        ),
        _each("bitsandbytes.nn.modules", "Int8Params", "CB SCB", "8-bit weights", **_BITSANDBYTES),
    )
)
# Modules that importing PyTorch or making an optimizer does not load, or not in every version.
_WHEN_LOADED = (
    "torch._dynamo",
    "torch.distributed.tensor",
    "torch.distributed.distributed_c10d",
    "torch.distributed.checkpoint",
    "transformers",
    "bitsandbytes",
)


def check() -> None:
    """Raises ConfigError for the first private name that the loaded versions do not have."""
    for name in NAMES:
        _check(name)


def check_module(module: str) -> None:
    """As check(), of the names of one module, which was just imported."""
    for name in NAMES:
        if name.module == module:
            _check(name)


def _check(name: PrivateName) -> None:
    owner = _owner_of(name)
    if owner is not None and not _has(owner, name):
        library = name.module.partition(".")[0]
        version = getattr(sys.modules.get(library), "__version__", "of unknown version")
        raise _C.ConfigError(
            f"{library} {version} has no {name}, which zerorun needs for {name.use}: use a version "
            f"that has it (seen in {name.seen})"
        )


def _owner_of(name: PrivateName) -> Any:
    """None for what is not loaded."""
    waits = any(name.module == m or name.module.startswith(f"{m}.") for m in _WHEN_LOADED)
    if waits and name.module not in sys.modules:
        return None
    try:
        module = importlib.import_module(name.module)
    except ImportError:
        return types.SimpleNamespace()  # which has no such name
    return getattr(module, name.owner, types.SimpleNamespace()) if name.owner else module


def _has(owner: Any, name: PrivateName) -> bool:
    if not name.in_code:
        return hasattr(owner, name.name) or name.name in getattr(owner, "__annotations__", ())
    methods = (getattr(value, "__func__", value) for value in vars(owner).values())
    codes = (method.__code__ for method in methods if isinstance(method, types.FunctionType))
    return any(name.name in _words(code) for code in codes)


def _words(code: types.CodeType) -> set[str]:
    """The names and texts in a function's code, and in that of those within."""
    found = {*code.co_names, *code.co_varnames}
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            found |= _words(constant)
        elif isinstance(constant, str):
            found.add(constant)
    return found


def hooks_of(optimizer: torch.optim.Optimizer, kind: str) -> list[Any]:
    """The hooks of one of the kinds above that a program registered on its optimizer."""
    return list(vars(optimizer)[kind].values())


def call_step_hooks(optimizer: torch.optim.Optimizer, kind: str) -> None:
    """Calls the hooks before or after a step as torch does: those for all optimizers are around
    the others."""
    own = hooks_of(optimizer, kind)
    module: Any = importlib.import_module(_OPTIMIZER)
    if kind == STEP_PRE_HOOKS:
        hooks = [*module._global_optimizer_pre_hooks.values(), *own]
    else:
        hooks = [*own, *module._global_optimizer_post_hooks.values()]
    for hook in hooks:
        hook(optimizer, (), {})
