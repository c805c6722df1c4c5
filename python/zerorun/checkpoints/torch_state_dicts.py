"""PyTorch's get_state_dict and set_state_dict for models and optimizers that belong to an engine.

torch.distributed.checkpoint.state_dict would find empty parameters at stage 3, and at no stage the
optimizer's states. Its functions call a few of its own, whose places are taken here: so they serve
every program, by whatever name it has imported them.
"""

import functools
import importlib
from typing import Any

from zerorun import torch_seam
from zerorun.lazy_names import when_imported
from zerorun.optimizers.saved_values import check_current

_MODULE = "torch.distributed.checkpoint.state_dict"
_SAVER = "torch.distributed.checkpoint.state_dict_saver"


@functools.cache
def serve() -> None:
    """From the first call on, PyTorch's functions know engines, also if they are imported later."""
    when_imported(_MODULE, _take_places)


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
    saver: Any = importlib.import_module(_SAVER)
    torch_seam.check_module(_SAVER)
    collect = saver._stateful_to_state_dict

    @functools.wraps(collect)
    def collect_current(states: dict[str, Any]) -> dict[str, Any]:
        found = collect(states)
        check_current(found)
        return found

    torch_seam.replace(saver, "_stateful_to_state_dict", collect_current)
