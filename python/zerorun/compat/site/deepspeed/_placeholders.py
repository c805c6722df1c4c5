"""Modules and names of DeepSpeed that zerorun does not have."""

import importlib
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

# Everything below these packages imports, and fails when it is used.
PACKAGES = (
    "autotuning",
    "compile",
    "compression",
    "elasticity",
    "inference",
    "io",
    "linear",
    "model_implementations",
    "module_inject",
    "moe",
    "monitor",
    "nebula",
    "nvme",
    "ops.aio",
    "ops.deepspeed4science",
    "ops.fp_quantizer",
    "ops.muon",
    "ops.op_builder",
    "ops.quantizer",
    "ops.random_ltd",
    "ops.sparse_attention",
    "ops.transformer",
    "pipe",
    "profiling",
    "runtime.data_pipeline",
    "runtime.domino",
    "runtime.hybrid_engine",
    "runtime.pipe",
    "runtime.sequence_parallel",
    "runtime.swap_tensor",
    "runtime.tensor_parallel",
    "runtime.zero.linear",
    "runtime.zero.mics",
    "runtime.zero.parameter_offload",
    "runtime.zero.stage3",
    "runtime.zero.stage_1_and_2",
    "runtime.zero.tiling",
    "sequence",
)


class _Absent(type):
    """The class of a name that is not there: importable, subclassable, not usable."""

    def __call__(cls, *_args: Any, **_kwargs: Any) -> Any:
        raise NotImplementedError(
            f"{cls.__module__}.{cls.__qualname__} is not part of zerorun, which stands in for "
            "DeepSpeed here; ZERORUN_COMPAT=0 runs the script with the real DeepSpeed"
        )


def placeholder(name: str) -> type:
    """A class that raises NotImplementedError when it is called."""
    module, _, last = name.rpartition(".")
    return _Absent(last, (), {"__module__": module})


class _PlaceholderModule(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value = placeholder(f"{self.__name__}.{name}")
        setattr(self, name, value)
        return value


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Comes last: what is in this package has been found before."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        if not fullname.startswith("deepspeed."):
            return None
        name = fullname.removeprefix("deepspeed.")
        if any(name == package or name.startswith(f"{package}.") for package in PACKAGES):
            return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        raise ModuleNotFoundError(
            f"No module named '{fullname}': zerorun stands in for DeepSpeed and does not have it",
            name=fullname,
        )

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return _PlaceholderModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Nothing to run."""


def lazy_submodules(package: str) -> Callable[[str], Any]:
    """A package's ``__getattr__`` that imports submodules when they are first named."""

    def __getattr__(name: str) -> Any:  # noqa: N807 - it becomes the package's
        if name.startswith("__"):
            raise AttributeError(name)
        try:
            return importlib.import_module(f"{package}.{name}")
        except ModuleNotFoundError as error:
            if error.name != f"{package}.{name}":
                raise
            raise AttributeError(f"module '{package}' (zerorun's) has no '{name}'") from None

    return __getattr__


def install() -> None:
    """Makes the placeholders importable."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.append(_Finder())
