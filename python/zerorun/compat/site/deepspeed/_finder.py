"""Finds the modules of this package: files where zerorun has one, else made of names alone.

A file that lies where DeepSpeed defines something is all that has to be written for it: packages
that only pass names on need no file, and every module has DeepSpeed's other names as placeholders.
"""

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from types import FunctionType, ModuleType
from typing import Any

from deepspeed._names import Names, all_names, names_of
from deepspeed._placeholders import absent_method, is_placeholder, placeholder

_ROOT = "deepspeed"
_FOLDER = os.path.dirname(__file__)
# Modules without a file whose names are those of another one, which has a concept as a whole: by
# that one. The package elasticity is of earlier versions, without _names.txt.
_SERVED_BY = {
    module: holder
    for holder, modules in {
        "accelerator": """
            accelerator.abstract_accelerator accelerator.cpu_accelerator
            accelerator.cuda_accelerator accelerator.real_accelerator
        """,
        "comm": "comm.comm comm.reduce_op",
        "elasticity": "elasticity.config elasticity.constants elasticity.elasticity",
        "launcher.runner": "launcher.multinode_runner",
        "moe.layer": "moe.experts moe.utils",
        "monitor.monitor": "monitor.comet monitor.csv_monitor monitor.tensorboard monitor.wandb",
        "ops._optimizers": """
            ops.adagrad.cpu_adagrad ops.adam.cpu_adam ops.adam.fused_adam ops.lamb.fused_lamb
            ops.lion.cpu_lion ops.lion.fused_lion
        """,
        "ops.op_builder": "ops.op_builder.all_ops ops.op_builder.builder",
        "runtime.base_optimizer": """
            runtime.fp16.fused_optimizer runtime.fp16.unfused_optimizer runtime.zero.stage3
            runtime.zero.stage_1_and_2
        """,
        "runtime.config": "runtime.zero.config runtime.zero.offload_config",
        "runtime.config_utils": "monitor.config runtime.precision_config",
        "runtime.zero.partition_parameters": "runtime.zero utils.init_on_device",
        "utils": "utils.bwc utils.exceptions utils.module_utils utils.numa utils.nvtx",
    }.items()
    for module in modules.split()
}


def short(module: str) -> str:
    """A module's name in _names.txt."""
    return "" if module == _ROOT else module.removeprefix(f"{_ROOT}.")


def full(module: str) -> str:
    return f"{_ROOT}.{module}" if module else _ROOT


def fallback(module: str) -> Callable[[str], Any]:
    """The ``__getattr__`` of a module: DeepSpeed's names that are not in the module's file."""

    def __getattr__(name: str) -> Any:  # noqa: N807 - it becomes the module's
        value = _find(module, name)
        setattr(sys.modules[module], name, value)
        return value

    return __getattr__


def _find(module: str, name: str) -> Any:
    own = short(module)
    names = names_of(own)
    if names is not None and not name.startswith("__"):
        if name in names.own():
            return _own(module, name, names)
        if name in names.imports:
            source, old = names.imports[name]
            found = importlib.import_module(full(source))
            return getattr(found, old) if old else found
        for star in names.stars:
            if name in all_names(star):
                return getattr(importlib.import_module(full(star)), name)
    if not name.startswith("__") and name in _served(own):  # __path__ is the holder's own
        return _served(own)[name]
    submodule = f"{own}.{name}" if own else name
    known = names_of(submodule) is not None or submodule in _SERVED_BY
    if known or _file_of(submodule) is not None:
        return importlib.import_module(full(submodule))
    raise AttributeError(f"module '{module}' (zerorun's) has no attribute '{name}'")


def _served(own: str) -> Mapping[str, Any]:
    """What the file has that serves a module, if one does."""
    holder = _SERVED_BY.get(own)
    return {} if holder is None else vars(importlib.import_module(full(holder)))


def _own(module: str, name: str, names: Names) -> Any:
    """A name that DeepSpeed defines in a module, where zerorun has no file or not this name."""
    served = _served(short(module)).get(name)
    if served is not None:
        return served
    if name in names.literals:
        return names.literals[name]
    if f"{short(module)}.{name}" in SECTIONS:
        models = importlib.import_module("deepspeed.runtime.config_utils")
        return models.section_class(f"{short(module)}.{name}")
    return placeholder(f"{module}.{name}")


def _shadow_submodules(package: ModuleType) -> None:
    """Binds names that a package has from submodules of the same name, which are imported for it:
    their import later on would take the name."""
    own = short(package.__name__)
    for name, (source, old) in names_of(own).imports.items() if names_of(own) else ():
        if old and source == f"{own}.{name}":
            value = getattr(package, name)
            importlib.import_module(full(source))
            setattr(package, name, value)


def _file_of(module: str) -> str | None:
    """zerorun's file for a module."""
    path = os.path.join(_FOLDER, *module.split("."))
    candidates = (f"{path}.py", os.path.join(path, "__init__.py"))
    return next(filter(os.path.isfile, candidates), None)


def _add_absent_members(module: ModuleType, own: str) -> None:
    """Gives the classes of a module what DeepSpeed's have besides, by its module `own`."""
    names = names_of(own)
    for name, members in names.classes.items() if names is not None else ():
        kind = vars(module).get(name)
        if isinstance(kind, type) and not is_placeholder(kind):
            for member in members:
                if not hasattr(kind, member):
                    setattr(kind, member, absent_method(f"{full(own)}.{name}.{member}"))


def _name_module(module: ModuleType, served: str) -> None:
    """Names the module where DeepSpeed defines them in classes of a file that serves it: pickles
    have that name."""
    names, own = names_of(served), names_of(short(module.__name__))
    defined = names.own() if names is not None else set()
    for name in defined - (own.own() if own is not None else set()):
        kind = vars(module).get(name)
        if isinstance(kind, type) and kind.__module__ == module.__name__:
            kind.__module__ = full(served)


def _name_made_functions(holder: Any, module: str, prefix: str = "") -> None:
    """Names functions that another one made, and lambdas, after what they are bound to: errors and
    traces have that name."""
    for name, value in list(vars(holder).items()):
        if getattr(value, "__module__", None) != module:
            continue
        if isinstance(value, type) and not prefix:
            _name_made_functions(value, module, f"{name}.")
        elif isinstance(value, FunctionType) and "<" in value.__qualname__:
            value.__name__, value.__qualname__ = name, prefix + name
            value.__code__ = value.__code__.replace(co_name=name)


class _FileLoader(importlib.machinery.SourceFileLoader):
    """Runs zerorun's file, then adds what it does not define."""

    def exec_module(self, module: ModuleType) -> None:
        module.__getattr__ = fallback(module.__name__)
        super().exec_module(module)
        _name_made_functions(module, module.__name__)
        own = short(module.__name__)
        for served in (own, *(name for name, holder in _SERVED_BY.items() if holder == own)):
            _add_absent_members(module, served)
            _name_module(module, served)
        names = vars(module).get("__all__") or [
            name
            for name, value in vars(module).items()
            if not name.startswith("_") and getattr(value, "__module__", "") == module.__name__
        ]
        module.__all__ = sorted({*names, *all_names(own)})
        _shadow_submodules(module)


class _NamesLoader(importlib.abc.Loader):
    """Makes a module that has DeepSpeed's names and no file."""

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> None:
        """As usual."""

    def exec_module(self, module: ModuleType) -> None:
        own = short(module.__name__)
        module.__getattr__ = fallback(module.__name__)
        module.__all__ = sorted(all_names(own))
        if names_of(own) is None:
            holder = full(_SERVED_BY[own])
            module.__all__ = [
                name
                for name, value in vars(importlib.import_module(holder)).items()
                if not name.startswith("_")
                and not isinstance(value, ModuleType)
                and getattr(value, "__module__", holder) == holder  # constants have none
            ]
        _shadow_submodules(module)


class _Finder(importlib.abc.MetaPathFinder):
    """Comes before the search of the path, which would not give a file its placeholders."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        if not fullname.startswith(f"{_ROOT}."):
            return None
        module = short(fullname)
        file, names = _file_of(module), names_of(module)
        if file is not None:
            loader = _FileLoader(fullname, file)
            return importlib.util.spec_from_file_location(fullname, file, loader=loader)
        if names is None and module not in _SERVED_BY:
            return None
        is_package = names is not None and names.is_package
        spec = importlib.machinery.ModuleSpec(fullname, _NamesLoader(), is_package=is_package)
        if is_package:
            spec.submodule_search_locations = [os.path.join(_FOLDER, *module.split("."))]
        return spec


def install() -> None:
    """Makes all modules of the package importable."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


# Which keys of a configuration the classes of its sections stand for, by the class's full name
# without the package's.
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
    "optimizer",
    "scheduler",
    "torch_autocast",
}
