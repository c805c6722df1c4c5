"""PyTorch's get_state_dict and set_state_dict for models and optimizers that belong to an engine.

torch.distributed.checkpoint.state_dict would find empty parameters at stage 3, and at no stage the
optimizer's states. Its functions call a few of its own, whose places are taken here: so they serve
every program, by whatever name it has imported them.
"""

import functools
import importlib.util
import sys
from typing import Any

from zerorun import torch_seam

_MODULE = "torch.distributed.checkpoint.state_dict"


@functools.cache
def serve() -> None:
    """From the first call on, PyTorch's functions know engines, also when they are imported later:
    importing them here would take a second."""
    if _MODULE in sys.modules:
        _take_places(sys.modules[_MODULE])
    else:
        sys.meta_path.insert(0, _Finder())  # type: ignore[arg-type]


class _Finder:
    """Waits for the module to be imported."""

    def find_spec(self, name: str, _path: Any = None, _target: Any = None) -> Any:
        if name != _MODULE:
            return None
        sys.meta_path.remove(self)  # type: ignore[arg-type]
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            execute(module)
            _take_places(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _take_places(module: Any) -> None:
    from zerorun.checkpoints.state_dicts import get_model, get_optimizer, load_model, load_optimizer

    torch_seam.check_module(_MODULE)
    for name, replacement in (
        ("_get_model_state_dict", get_model),
        ("_load_model_state_dict", load_model),
        ("_get_optim_state_dict", get_optimizer),
        ("_load_optim_state_dict", load_optimizer),
    ):
        served = functools.partial(replacement, module, getattr(module, name))
        torch_seam.replace(module, name, served)
