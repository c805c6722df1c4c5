"""The floating point operations of PyTorch's functions, counted while somebody listens.

The figures are those of DeepSpeed 0.19: two operations for each multiply-add, one for each element
of an element-wise function, an estimate for norms. Operators (`a + b`, `a * b`) and the bias of a
linear layer are not counted.
"""

# ruff: noqa: A002 - arguments have the names that PyTorch's functions have

import functools
from collections.abc import Callable
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.backends import mha
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from zerorun import torch_seam
from zerorun.process_state import STATE

Cost = tuple[int, int]  # operations, and multiply-adds among them
Listener = Callable[[int, int], None]


def _products(macs: int, others: int = 0) -> Cost:
    return 2 * macs + others, macs


def _linear(result: Tensor, input: Tensor, weight: Tensor, bias: Any = None) -> Cost:
    return _products(result.numel() * weight.shape[-1])


def _convolution(
    result: Tensor, input: Tensor, weight: Tensor, bias: Any = None, *_: Any, **__: Any
) -> Cost:
    added = 0 if bias is None else result.numel()
    return _products(result.numel() * prod(weight.shape[1:]), added)


def _transposed_convolution(
    result: Tensor, input: Tensor, weight: Tensor, bias: Any = None, *_: Any, **__: Any
) -> Cost:
    added = 0 if bias is None else result.numel()
    return _products(input.numel() * prod(weight.shape[1:]), added)


def _matmul(result: Tensor, input: Tensor, *_: Any, **__: Any) -> Cost:
    return _products(result.numel() * input.shape[-1])


def _added_matmul(result: Tensor, *added_and_factors: Tensor, **named: Any) -> Cost:
    factors = (*added_and_factors[1:], named.get("mat1"), named.get("batch1"))
    left = next(factor for factor in factors if factor is not None)
    return _products(result.numel() * left.shape[-1], result.numel())


def _einsum(result: Tensor, *equation_and_operands: Any) -> Cost:
    with FlopCounterMode(display=False) as counter:
        torch.functional.einsum(*equation_and_operands)
    flops = counter.get_total_flops()
    return max(flops, result.numel()), flops // 2


def _attention(result: Tensor, query: Tensor, key: Tensor, *_: Any, **__: Any) -> Cost:
    return _products((query.numel() + result.numel()) * key.shape[-2])


def _each_result(result: Tensor, *_: Any, **__: Any) -> Cost:
    return result.numel(), 0


def _each_input(result: Any, input: Tensor, *_: Any, **__: Any) -> Cost:
    return input.numel(), 0


def _norm(
    result: Tensor, input: Tensor, groups: Any = None, weight: Any = None, *_: Any, **__: Any
) -> Cost:
    return (4 if weight is None else 5) * result.numel(), 0


def _instance_norm(
    result: Tensor,
    input: Tensor,
    mean: Any = None,
    variance: Any = None,
    weight: Any = None,
    *_: Any,
    **__: Any,
) -> Cost:
    return _norm(result, input, None, weight)


def _batch_norm(  # noqa: PLR0913, PLR0917 - PyTorch's signature
    result: Tensor,
    input: Tensor,
    running_mean: Any = None,
    running_var: Any = None,
    weight: Any = None,
    bias: Any = None,
    training: bool = False,
    *_: Any,
    **__: Any,
) -> Cost:
    return ((4 if training else 1) + (weight is not None)) * result.numel(), 0


_FUNCTIONS: tuple[tuple[Any, str, Callable[..., Cost]], ...] = (
    (functional, "linear", _linear),
    (functional, "conv1d conv2d conv3d", _convolution),
    (functional, "conv_transpose1d conv_transpose2d conv_transpose3d", _transposed_convolution),
    (functional, "scaled_dot_product_attention", _attention),
    (functional, "relu prelu elu leaky_relu relu6 silu gelu softmax interpolate", _each_result),
    (functional, "avg_pool1d avg_pool2d avg_pool3d", _each_input),
    (functional, "max_pool1d max_pool2d max_pool3d", _each_input),
    (functional, "adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d", _each_input),
    (functional, "adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d", _each_input),
    (functional, "layer_norm group_norm", _norm),
    (functional, "instance_norm", _instance_norm),
    (functional, "batch_norm", _batch_norm),
    (torch, "matmul mm bmm", _matmul),
    (Tensor, "matmul __matmul__ mm bmm", _matmul),
    (torch, "addmm baddbmm", _added_matmul),
    (Tensor, "addmm baddbmm", _added_matmul),
    (torch, "einsum", _einsum),
    (torch, "mul add", _each_result),
    (Tensor, "mul add", _each_result),
)
_ORIGINALS = tuple(
    (owner, name, getattr(owner, name), cost)
    for owner, names, cost in _FUNCTIONS
    for name in names.split()
)
# Attention calls them all while it may not take a function of its own.
_FASTPATH = mha.get_fastpath_enabled


def listen(listener: Listener) -> None:
    """Calls `listener` with the cost of each call of a function from here on."""
    if not STATE.flops:
        for owner, name, original, cost in _ORIGINALS:
            torch_seam.replace(owner, name, _counted(original, cost))
        torch_seam.replace(mha, "get_fastpath_enabled", lambda: False)
    STATE.flops.append(listener)


def unlisten(listener: Listener) -> None:
    """With the last listener PyTorch has its own functions again."""
    STATE.flops.remove(listener)
    if not STATE.flops:
        for owner, name, original, _ in _ORIGINALS:
            torch_seam.replace(owner, name, original)
        torch_seam.replace(mha, "get_fastpath_enabled", _FASTPATH)


def _counted(function: Callable[..., Any], cost: Callable[..., Cost]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        counted = cost(result, *args, **kwargs)
        for listener in STATE.flops:
            listener(*counted)
        return result

    return call


# Those of the gates of recurrent layers, per hidden unit and step of a sequence.
_RECURRENT = {
    nn.RNN: 1,
    nn.RNNCell: 1,
    nn.GRU: 7,
    nn.GRUCell: 7,
    nn.LSTM: 10,
    nn.LSTMCell: 10,
}


def recurrent_flops(module: nn.Module, input: Any) -> int:
    """Those of one call of a recurrent layer, which calls none of the functions above; else 0."""
    gates = _RECURRENT.get(type(module))
    if gates is None:
        return 0
    sums = sum(
        2 * weight.numel() - weight.shape[0] if weight.dim() > 1 else weight.numel()
        for name, weight in module.named_parameters(recurse=False)
        if not name.endswith("_reverse")
    )
    layers, units = getattr(module, "num_layers", 1), int(module.hidden_size)  # type: ignore[arg-type]
    directions = 2 if getattr(module, "bidirectional", False) else 1
    steps = input.data.numel() // module.input_size  # .data: that of a packed sequence, too
    return steps * directions * (sums + gates * layers * units)
