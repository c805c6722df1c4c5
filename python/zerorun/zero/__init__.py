"""Working with the parameters of a sharded model.

At stage 3, and under :class:`Init`, a parameter is empty on every rank while no module uses it
(``shape == [0]``; ``ds_shape`` and ``ds_numel`` have its full shape and size).
:class:`GatheredParameters` makes it full. The functions ``safe_*`` read and write master
parameters, gradients and optimizer states at any stage. All of these are as in ``deepspeed.zero``
and ``deepspeed.utils``.
"""

from zerorun.hooks.shared_unit import register_external_parameter, unregister_external_parameter
from zerorun.zero.gathered import (
    GatheredParameters,
    ZeroParamStatus,
    full_tensor,
    register_forward_method,
    safe_get_full_fp32_param,
    safe_get_full_grad,
    safe_get_full_optimizer_state,
    safe_get_local_fp32_param,
    safe_get_local_grad,
    safe_get_local_optimizer_state,
    safe_set_full_fp32_param,
    safe_set_full_grad,
    safe_set_full_optimizer_state,
    safe_set_local_fp32_param,
    safe_set_local_grad,
    safe_set_local_optimizer_state,
)
from zerorun.zero.init import Init

__all__ = [
    "GatheredParameters",
    "Init",
    "ZeroParamStatus",
    "full_tensor",
    "register_external_parameter",
    "register_forward_method",
    "safe_get_full_fp32_param",
    "safe_get_full_grad",
    "safe_get_full_optimizer_state",
    "safe_get_local_fp32_param",
    "safe_get_local_grad",
    "safe_get_local_optimizer_state",
    "safe_set_full_fp32_param",
    "safe_set_full_grad",
    "safe_set_full_optimizer_state",
    "safe_set_local_fp32_param",
    "safe_set_local_grad",
    "safe_set_local_optimizer_state",
    "unregister_external_parameter",
]
