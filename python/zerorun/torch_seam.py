"""Every private name of PyTorch, transformers and bitsandbytes that zerorun relies on, and every
function of PyTorch's that it replaces.

check() looks each of them up when an engine is made, so that a version which lacks one is an error
that names it instead of a gradient that is silently not clipped or a state dict without states.
Names of modules that are not loaded are looked up when an engine is made after their import.

replace() is the one way in which the package replaces a function of PyTorch's. Other patches are
not of PyTorch: constructors of modules, which zero.Init wraps while a block is open, methods of the
model and the optimizer that a program passed (engine, shards/torch_optimizer), and DeepSpeed's
attributes of parameters (compat, partition_parameters).
"""

import contextlib
import functools
import importlib
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from zerorun import _C

STEP_PRE_HOOKS = "_optimizer_step_pre_hooks"
STEP_POST_HOOKS = "_optimizer_step_post_hooks"
STATE_DICT_PRE_HOOKS = "_optimizer_state_dict_pre_hooks"
STATE_DICT_POST_HOOKS = "_optimizer_state_dict_post_hooks"
LOAD_STATE_DICT_PRE_HOOKS = "_optimizer_load_state_dict_pre_hooks"
LOAD_STATE_DICT_POST_HOOKS = "_optimizer_load_state_dict_post_hooks"
OPTIMIZER_HOOKS = (
    *(STEP_PRE_HOOKS, STEP_POST_HOOKS, STATE_DICT_PRE_HOOKS, STATE_DICT_POST_HOOKS),
    *(LOAD_STATE_DICT_PRE_HOOKS, LOAD_STATE_DICT_POST_HOOKS),
)
CALLS_HOOKS = "hooked"  # on a step: torch wraps others, to call the hooks
WRAPPED_BY_SCHEDULER = "_wrapped_by_lr_sched"
STEP_WAS_CALLED = "_opt_called"
TAKES_SCALE = "_step_supports_amp_scaling"
INITIALIZERS = (
    "uniform_ normal_ trunc_normal_ constant_ ones_ zeros_ eye_ dirac_ xavier_uniform_ "
    "xavier_normal_ kaiming_uniform_ kaiming_normal_ orthogonal_ sparse_"
)


_VERSION = tuple(int(part) for part in torch.__version__.split(".")[:2])
DTENSORS = "torch.distributed.tensor" if _VERSION >= (2, 5) else "torch.distributed._tensor"


@dataclass(frozen=True)
class PrivateName:
    """A name that its owner, a module or a class in it, has or declares; or, as an attribute that
    only instances have, which is in its code."""

    module: str
    owner: str  # within the module; "": the module itself
    name: str
    use: str
    seen: str
    in_code: bool
    is_new: bool  # older versions that are supported do not have it

    def __str__(self) -> str:
        return ".".join(filter(None, (self.module, self.owner, self.name)))


# A module, ".", a class in it if there is one, then names, of which those with a star are in the
# class' code only, and those with a question mark are looked for where they are used; behind a
# colon what they are for.
_TABLES = {
    "torch 2.4 to 2.15": f"""
        torch.nn.modules.module.Module _call_impl _parameters: calls under way, empty parameters
        torch.nn.modules.module.Module _buffers _modules _non_persistent_buffers_set: meta device
        torch.nn.modules.module.Module _register_state_dict_hook: state dicts of empty parameters
        torch.nn.modules.module _IncompatibleKeys: set_model_state_dict
        torch.UntypedStorage _cdata: views of gathered parameters
        torch.Tensor _version: values that a program writes
        torch.nn.parameter.Parameter grad: gradients of DeepSpeed scripts, replaced at stage 0
        torch.nn.parameter.Parameter __new__: zero.Init, which replaces it meanwhile
        torch empty: zero.Init of a DeepSpeed script, which replaces it meanwhile
        torch batch_norm instance_norm: norms with fp32 statistics, which are replaced
        torch.nn.modules.module.Module apply to_empty: zero.Init, which replaces them meanwhile
        torch.nn.modules.module.Module __init_subclass__: zero.Init, which replaces it meanwhile
        torch.nn.init {INITIALIZERS}: zero.Init, which replaces them meanwhile
        torch.amp.autocast_mode.autocast __enter__: the begin of autocast, which is replaced
        torch.optim.swa_utils.AveragedModel update_parameters: empty parameters, replaced
        torch.nn.utils.clip_grad clip_grad_norm_ clip_grad_value_: clipping, which is replaced
        torch.nn.utils.clip_grad ?_clip_grads_with_norm_: clipping, which is replaced
        torch.amp.grad_scaler.GradScaler _unscale_grads_ *_step_supports_amp_scaling: replaced
        torch.distributed.fsdp.sharded_grad_scaler.ShardedGradScaler _unscale_grads_: replaced
        torch.jit._builtins _register_builtin _find_builtin: norms in scripted code
        torch.nn.modules.rnn.RNNBase flatten_parameters: weights of RNNs, which it moves; replaced
        torch._C _current_graph_task_id _disabled_torch_function_impl: backward; ds_tensor
        torch._C._functorch is_functorch_wrapped_tensor get_unwrapped: torch.func's transforms
        torch._C _are_functorch_transforms_active: torch.func's transforms
        torch._C _functorch DisableTorchFunctionSubclass ?_will_engine_execute_node: DeepSpeed's
        torch.autograd.graph ?_get_grad_fn_or_grad_acc: a function of DeepSpeed's
        torch.nn.functional ?linear ?conv1d ?conv2d ?conv3d: FLOPs, which replace them meanwhile
        torch.nn.functional ?conv_transpose1d ?conv_transpose2d ?conv_transpose3d: likewise
        torch.nn.functional ?scaled_dot_product_attention ?interpolate ?softmax: likewise
        torch.nn.functional ?relu ?prelu ?elu ?leaky_relu ?relu6 ?silu ?gelu: likewise
        torch.nn.functional ?avg_pool1d ?avg_pool2d ?avg_pool3d: likewise
        torch.nn.functional ?max_pool1d ?max_pool2d ?max_pool3d: likewise
        torch.nn.functional ?adaptive_avg_pool1d ?adaptive_avg_pool2d ?adaptive_avg_pool3d: likewise
        torch.nn.functional ?adaptive_max_pool1d ?adaptive_max_pool2d ?adaptive_max_pool3d: likewise
        torch.nn.functional ?layer_norm ?group_norm ?instance_norm ?batch_norm: likewise
        torch ?matmul ?mm ?bmm ?addmm ?baddbmm ?einsum ?mul ?add: likewise
        torch.Tensor ?matmul ?__matmul__ ?mm ?bmm ?addmm ?baddbmm ?mul ?add: likewise
        torch.backends.mha ?get_fastpath_enabled: likewise
        torch ?_fused_adam_ ?_fused_adamw_: DeepSpeed's optimizers without an engine
        torch ?_foreach_add ?_foreach_add_ ?_foreach_addcdiv_ ?_foreach_addcmul_: likewise
        torch ?_foreach_lerp ?_foreach_lerp_ ?_foreach_mul_ ?_foreach_sign ?_foreach_sqrt: likewise
        torch.autograd.Variable _execution_engine: the end of a backward
        torch.Tensor _values: norms of sparse gradients
        torch.Tensor register_post_accumulate_grad_hook: hooks that find gradients, replaced
        torch._ops.OpOverload *_schema: optimizers on shards
        torch.utils._pytree tree_map_only tree_leaves: inputs of models
        torch.utils._python_dispatch TorchDispatchMode: optimizers on shards
        torch.utils._python_dispatch is_traceable_wrapper_subclass: weights made of others
        torch.optim.optimizer.Optimizer _optimizer_step_pre_hooks: hooks of the given optimizer
        torch.optim.optimizer.Optimizer _optimizer_step_post_hooks: hooks of the given optimizer
        torch.optim.optimizer.Optimizer *hooked: steps that torch does not wrap
        torch.optim.optimizer.Optimizer _optimizer_state_dict_pre_hooks: hooks of state dicts
        torch.optim.optimizer.Optimizer _optimizer_state_dict_post_hooks: hooks of state dicts
        torch.optim.optimizer.Optimizer _optimizer_load_state_dict_pre_hooks: hooks of loads
        torch.optim.optimizer.Optimizer _optimizer_load_state_dict_post_hooks: hooks of loads
        torch.optim.optimizer _global_optimizer_pre_hooks: hooks of all optimizers
        torch.optim.optimizer _global_optimizer_post_hooks: hooks of all optimizers
        torch.optim.lr_scheduler.LRScheduler *_opt_called *_wrapped_by_lr_sched: schedulers
        torch._C._dynamo.eval_frame get_eval_frame_callback: hooks in compiled code
        torch._dynamo.eval_frame skip_code: hooks in compiled code
        torch._dynamo.eval_frame.DisableContext *_torchdynamo_disable: hooks in compiled code
        torch._dynamo.eval_frame.OptimizedModule *_orig_mod: names of parameters
        {DTENSORS}.DTensor _local_tensor: this rank's piece
        torch.distributed.distributed_c10d _get_default_store: where ranks meet
        torch.distributed.checkpoint.state_dict _get_model_state_dict _get_optim_state_dict: saves
        torch.distributed.checkpoint.state_dict _load_model_state_dict: loads
        torch.distributed.checkpoint.state_dict _load_optim_state_dict: loads
        torch.distributed.checkpoint.state_dict _get_fqns _flatten_optim_state_dict: names
        torch.distributed.checkpoint.state_dict_saver _stateful_to_state_dict: saves of old copies
        """,
    "transformers 5.23": """
        transformers.modeling_utils ALL_ATTENTION_FUNCTIONS: sequence parallelism
        transformers.modeling_utils.PreTrainedModel _keep_in_fp32_modules: buffers that stay fp32
        transformers.modeling_utils.PreTrainedModel ?_keep_in_fp32_modules_strict: likewise
        """,
    "torch 2.13": """
        torch.distributed.fsdp._fully_shard._fully_shard.FSDPModule _orig_cls_mro_index: fsdp
        torch.distributed.fsdp._fully_shard._fully_shard.FSDPModule _get_fsdp_state: fsdp
        torch.distributed.fsdp._fully_shard._fsdp_state.FSDPState *_fsdp_param_groups: fsdp
        torch.distributed.fsdp._fully_shard._fsdp_state.FSDPState *_pre_forward_hook_handle: fsdp
        torch.distributed.fsdp._fully_shard._fsdp_state.FSDPState *_post_forward_hook_handle: fsdp
        torch.distributed.fsdp._fully_shard._fsdp_param_group.FSDPParamGroup *fsdp_params: fsdp
        torch.distributed.fsdp._fully_shard._fsdp_param.FSDPParam *_post_load_hook_handle: fsdp
        torch.distributed.fsdp._fully_shard._fsdp_param_group.FSDPParamGroup *_module_to_pre_save_state_dict_hook_handle: fsdp
        torch.distributed.fsdp._fully_shard._fsdp_param_group.FSDPParamGroup *_module_to_pre_load_state_dict_hook_handle: fsdp
        torch.Tensor _backward_hooks _post_accumulate_grad_hooks: fsdp
        torch.distributed._composable_state _module_state_mapping: fsdp
        torch.distributed._composable.contract STATE_KEY REGISTRY_KEY: fsdp
        """,  # noqa: E501 - names of PyTorch
    "its source, not a GPU": """
        bitsandbytes.nn.modules.Params4bit *bnb_quantized *quant_state: 4-bit weights
        bitsandbytes.nn.modules.Int8Params *CB *SCB: 8-bit weights
        """,
}


def _read(seen: str, table: str) -> Iterator[PrivateName]:
    for line in table.strip().splitlines():
        names, _, use = line.strip().partition(": ")
        place, *privates = names.split()
        module, _, last = place.rpartition(".")
        is_class = last[:1].isupper() or last == "autocast"
        module, owner = (module, last) if is_class else (place, "")
        for each in privates:
            name = each.lstrip("*?")
            yield PrivateName(module, owner, name, use, seen, "*" in each, "?" in each)


# PyTorch before 2.6 cannot be asked for a running compiler, and 2.6 takes a reference to its
# answer away with each call, until the process dies.
COMPILER = "get_eval_frame_callback"
KNOWS_COMPILER = _VERSION >= (2, 8)
NAMES = tuple(
    name
    for seen, table in _TABLES.items()
    for name in _read(seen, table)
    if KNOWS_COMPILER or name.name != COMPILER
)
TRANSFORMERS = "transformers.modeling_utils"
_ATTENTION = "ALL_ATTENTION_FUNCTIONS"  # for sequence parallelism alone, which checks it
ADOPTION = "fsdp"  # the adoption of models of FSDP2, which checks what it needs
# What FSDP leaves in modules, and transformers in models that it has distributed (the first name).
MARKS_OF_FSDP = ("_is_fsdp_managed_module", "_fsdp_use_orig_params")
MARKS_OF_TRANSFORMERS = (
    *("_is_distributed_loading_by_transformers", "_device_mesh", "_mesh_manager"),
    *("_tp_size", "_fsdp_size"),
)
# Modules that importing PyTorch or making an optimizer does not load, or not in every version.
_WHEN_LOADED = (
    "torch._dynamo",
    DTENSORS,
    "torch.distributed.distributed_c10d",
    "torch.distributed.checkpoint",
    "torch.distributed.fsdp.sharded_grad_scaler",
    "transformers",
    "bitsandbytes",
)


def check() -> None:
    """Raises ConfigError for the first private name that the loaded versions do not have, of those
    that every engine needs."""
    for name in NAMES:
        if not name.is_new and name.name != _ATTENTION and name.use != ADOPTION:
            _check(name)


def check_module(module: str) -> None:
    """As check(), of the names of one module, which was just imported."""
    for name in NAMES:
        if name.module == module:
            _check(name)


def replace(owner: Any, name: str, replacement: Any) -> None:
    """Puts `replacement` in the place of a function of PyTorch's, which the table has."""
    parts = (owner.__module__, owner.__name__) if isinstance(owner, type) else (owner.__name__,)
    assert ".".join((*parts, name)) in map(str, NAMES)
    setattr(owner, name, replacement)


def replace_imported(owner: types.ModuleType, replacements: dict[str, Any]) -> None:
    """The same of several functions, also in the modules that have imported them by name."""
    by_id = {id(getattr(owner, name)): new for name, new in replacements.items()}
    for module in list(sys.modules.values()):
        for name, value in list(getattr(module, "__dict__", {}).items()):
            if id(value) in by_id:
                setattr(module, name, by_id[id(value)])
    for name, new in replacements.items():
        replace(owner, name, new)


def undo_fully_shard(modules: list[Any]) -> None:
    """Makes modules that fully_shard has been called on what they were, but for their parameters,
    which stay DTensors."""
    for name in NAMES:
        if name.use == ADOPTION:
            _check(name)
    contract: Any = importlib.import_module("torch.distributed._composable.contract")
    composable: Any = importlib.import_module("torch.distributed._composable_state")
    fsdp: Any = importlib.import_module("torch.distributed.fsdp")
    registered = fsdp.register_fsdp_forward_method.__code__.co_consts  # the code that it wraps with
    for module in modules:
        state = module._get_fsdp_state()
        handles = [state._pre_forward_hook_handle, state._post_forward_hook_handle]
        for group in state._fsdp_param_groups:
            handles += group._module_to_pre_save_state_dict_hook_handle.values()
            handles += group._module_to_pre_load_state_dict_hook_handle.values()
            handles += [parameter._post_load_hook_handle for parameter in group.fsdp_params]
        for handle in handles:
            handle.remove()
        kind = type(module)
        module.__class__ = kind.__mro__[kind._orig_cls_mro_index]
        for key, method in list(vars(module).items()):
            original = method
            while getattr(original, "__code__", "") in registered:
                original = original.__wrapped__
            if original is not method:
                setattr(module, key, original)
        composable._module_state_mapping.pop(module, None)
        for key in (contract.STATE_KEY, contract.REGISTRY_KEY):
            vars(module).pop(key, None)


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
    return list(vars(optimizer).get(kind, {}).values())


@contextlib.contextmanager
def without_hooks_of_all() -> Iterator[None]:
    """A block in which steps do not call the hooks for all optimizers."""
    module: Any = importlib.import_module("torch.optim.optimizer")
    hooks = module._global_optimizer_pre_hooks, module._global_optimizer_post_hooks
    kept = [dict(each) for each in hooks]
    for each in hooks:
        each.clear()
    try:
        yield
    finally:
        for each, before in zip(hooks, kept, strict=True):
            each.update(before)


def call_step_hooks(optimizer: torch.optim.Optimizer, kind: str) -> None:
    """Calls the hooks before or after a step as torch does: those for all optimizers are around
    the others."""
    own = hooks_of(optimizer, kind)
    module: Any = importlib.import_module("torch.optim.optimizer")
    before, after = module._global_optimizer_pre_hooks, module._global_optimizer_post_hooks
    for hook in [*before.values(), *own] if kind == STEP_PRE_HOOKS else [*own, *after.values()]:
        hook(optimizer, (), {})


# --- norms with 16-bit parameters beside fp32 statistics ---


def serve_mixed_norms(model: nn.Module, param_dtype: str) -> None:
    """Lets the norms of a model in 16 bits compute, whose running statistics are fp32.

    torch takes a 16-bit input with statistics and parameters in fp32, but refuses 16-bit parameters
    beside such statistics. From the first such model on, its two functions compute with the fp32
    values of these parameters. The modules are as they were, so copies of them, and a model whose
    engine has ended, compute in the same way; so do forwards of other libraries that call torch's
    functions themselves.
    """
    if param_dtype != "fp32" and any(b.dtype == torch.float32 for b in model.buffers()):
        _replace_functions()


@functools.cache
def _replace_functions() -> None:
    for name in ("batch_norm", "instance_norm"):
        original = getattr(torch, name)
        replacement = _with_fp32_parameters(original)
        replace(torch, name, replacement)
        # torch.jit.script knows torch's functions by what they are: it takes this for that one.
        builtins: Any = importlib.import_module("torch.jit._builtins")
        builtins._register_builtin(replacement, builtins._find_builtin(original))


def _with_fp32_parameters(original: Any) -> Any:
    @functools.wraps(original)
    def norm(
        input: Any,  # noqa: A002 - torch's name
        weight: Any,
        bias: Any,
        running_mean: Any,
        running_var: Any,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        if running_mean is not None and running_mean.dtype == torch.float32:
            weight, bias = _widened(weight), _widened(bias)
        return original(input, weight, bias, running_mean, running_var, *args, **kwargs)

    return norm


def _widened(parameter: torch.Tensor | None) -> torch.Tensor | None:
    return (
        parameter.float()
        if parameter is not None and parameter.dtype in {torch.bfloat16, torch.float16}
        else parameter
    )
