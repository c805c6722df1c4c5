"""SequenceGroups: which ranks share a sequence."""

import contextlib
import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from zerorun import _C, communicator, torch_seam
from zerorun import config as configuration
from zerorun.experts import group_of_this_rank
from zerorun.process_state import STATE


@dataclass(frozen=True)
class SequenceGroups:
    """This rank's place among those that share each sequence."""

    size: int
    group: Any  # the torch process group of these ranks
    rank: int  # in the group: the index of this rank's part of a sequence
    data_rank: int  # index of the group
    data_size: int  # number of groups, each of which has different sequences

    @classmethod
    def of(cls, group: Any) -> "SequenceGroups":
        """Uses a process group of the program, which must consist of consecutive ranks."""
        size, rank = dist.get_world_size(group), dist.get_rank(group)
        return cls(size, group, rank, dist.get_rank() // size, dist.get_world_size() // size)


def start(size: int, parts: Sequence[Sequence[int]] | None = None) -> SequenceGroups:
    """Makes groups of `size` neighbouring ranks that share each sequence. Collective.

    Engines that are made later use them. A second call with the same size returns the same groups.
    Needs torch.distributed's default group. Raises ConfigError if `size` does not divide the number
    of ranks or differs from that of an earlier call.

    `parts`: where ranks hold different parts of a model, the ranks that hold each part; neighbours
    in one of these share a sequence. Default: all ranks hold the model.
    """
    if STATE.sequence is not None:
        _check_same(STATE.sequence, size, parts)
        return STATE.sequence
    if not dist.is_available() or not dist.is_initialized():
        raise _C.ConfigError(
            "sequence parallelism needs torch.distributed: call init_process_group before"
        )
    world_size = dist.get_world_size()
    parts = [range(world_size)] if parts is None else parts
    data_size = len(parts[0]) // max(1, size)
    if size < 1 or any(len(part) != size * data_size for part in parts):
        whole = "the job's" if len(parts) == 1 else "those that hold a part of the model,"
        raise _C.ConfigError(
            f"sequence parallelism: {size} ranks per sequence do not divide {whole} {len(parts[0])}"
        )
    lists = [part[i : i + size] for part in parts for i in range(0, len(part), size)]
    members, group = group_of_this_rank(lists)
    number = [tuple(ranks) for ranks in lists].index(members) % data_size
    STATE.sequence = SequenceGroups(size, group, dist.get_rank(group), number, data_size)
    return STATE.sequence


def _check_same(made: SequenceGroups, size: int, parts: Sequence[Sequence[int]] | None) -> None:
    """Raises ConfigError unless the job's groups are those that are asked for."""
    if made.size != size:
        raise _C.ConfigError(
            f"sequence parallelism: got {size} ranks per sequence, but the job's groups have "
            f"{made.size} already; a job has one size"
        )
    ranks = dist.get_process_group_ranks(made.group)
    own = next((part for part in parts or () if dist.get_rank() in part), None)
    if own is None:
        return
    first = list(own).index(dist.get_rank()) // size * size
    if ranks != list(own[first : first + size]):
        raise _C.ConfigError(
            f"sequence parallelism: ranks {ranks} share sequences already, and the mesh asks for "
            f"ranks {list(own[first : first + size])}: a job has one division"
        )


def current() -> SequenceGroups | None:
    """The groups made by :func:`start`, or None."""
    return STATE.sequence


def data_parallel_size(world_size: int) -> int:
    """The number of ranks, or of groups that share a sequence, that have different data."""
    return world_size if STATE.sequence is None else world_size // STATE.sequence.size


def start_configured(
    parsed: configuration.ParsedConfig,
    given: Mapping[str, Any],
    parts: Sequence[Sequence[int]] | None = None,
) -> configuration.ParsedConfig:
    """Makes the groups that `parsed` asks for; returns it with their dtype of communication.

    `given` is its content. `parts`: see :func:`start`. Collective where it asks for groups. Raises
    ConfigError for sizes that the number of ranks contradicts.
    """
    size = configuration.value_of(parsed, "/sequence_parallel_size", 1)
    if size > 1:
        start(size, parts)
    data_size = configuration.value_of(parsed, "/data_parallel_size")
    if data_size is not None:
        ranks = communicator.world(parsed.config.comm_timeout_s).world_size
        ranks = ranks if parts is None else len(parts[0])
        expected = data_parallel_size(ranks)
        if data_size != expected:
            raise _C.ConfigError(
                f"/data_parallel_size: got {data_size}, expected {expected}: {ranks} ranks, "
                f"{ranks // expected} for each sequence"
            )
    if size == 1:
        return parsed
    dtype = configuration.value_of(parsed, "/seq_parallel_communication_data_type", "fp32")
    changed = {**given, "communication_data_type": dtype}
    return configuration.parse(changed, parsed.config.source)


# --- attention: heads are exchanged for tokens and back ---

# As Hugging Face calls it: (module, query, key, value, mask, **options) -> (context, weights).
Attention = Callable[..., tuple[torch.Tensor, torch.Tensor | None]]


class AllToAll(torch.autograd.Function):
    """Part i of dimension 0 goes to rank i, from which part i comes."""

    @staticmethod
    def forward(ctx: Any, parts: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group = group
        received = torch.empty_like(parts, memory_format=torch.contiguous_format)
        dist.all_to_all_single(received, parts.contiguous(), group=group)
        return received

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        return AllToAll.apply(gradients[0], ctx.group), None


def _tokens_for_heads(groups: SequenceGroups, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """[batch, heads, own tokens, size] each to [batch, own heads, tokens, size], at once."""
    size = groups.size
    split = [tensor.unflatten(1, (size, -1)) for tensor in tensors]  # [batch, size, heads, ...]
    packed = torch.cat(split, dim=2).movedim(1, 0)
    received = AllToAll.apply(packed, groups.group).movedim(0, 2)  # [batch, heads, size, ...]
    counts = [part.shape[2] for part in split]
    return [part.flatten(2, 3) for part in received.split(counts, dim=1)]


def attend(
    core: Callable[..., torch.Tensor],
    groups: SequenceGroups,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
) -> torch.Tensor:
    """Attention of this rank's tokens to the whole sequence. Collective over the group.

    Ulysses (Jacobs et al., arXiv 2309.14509): one all-to-all exchanges tokens for heads, `core`
    attends, and a second all-to-all exchanges heads for tokens. Differentiable.

    - `core(query, key, value)`: gets [batch, own heads, tokens, head size], with all tokens of this
      rank's heads, and returns [batch, tokens, own heads, head size].
    - `groups`: from :func:`zerorun.sequence.start`.
    - `query`, `key`, `value`: [batch, heads, own tokens, head size]. Key and value may have fewer
      heads; if these are fewer than ranks, they are repeated.

    Returns [batch, own tokens, heads, head size]. Raises ConfigError if the ranks do not divide the
    heads.
    """
    heads, kv_heads = query.shape[1], key.shape[1]
    _check_heads(heads, kv_heads, groups.size)
    if kv_heads < groups.size:
        times = groups.size // kv_heads
        key, value = (tensor.repeat_interleave(times, dim=1) for tensor in (key, value))
    context = core(*_tokens_for_heads(groups, [query, key, value]))
    parts = context.unflatten(1, (groups.size, -1)).movedim(1, 0)  # of the tokens
    return AllToAll.apply(parts, groups.group).movedim(0, 2).flatten(2, 3)


def _check_heads(heads: int, kv_heads: int, size: int) -> None:
    if heads % size != 0:
        raise _C.ConfigError(
            f"sequence parallelism: {size} ranks do not divide the model's {heads} attention heads"
        )
    if kv_heads % size != 0 and size % kv_heads != 0:
        raise _C.ConfigError(
            f"sequence parallelism: {size} ranks and {kv_heads} key-value heads do not divide one "
            "another"
        )


class _Positions:
    """The positions of all tokens, gathered once for all layers of a forward pass."""

    def __init__(self, groups: SequenceGroups) -> None:
        self._groups = groups
        self._own: torch.Tensor | None = None
        self._version: int | None = None
        self._all = torch.empty(0)
        self.documents: torch.Tensor | None = None  # of each token, where there are several

    def gather(self, own: torch.Tensor) -> torch.Tensor:
        version = None if own.is_inference() else own._version
        if own is self._own and version == self._version:
            return self._all
        parts = [torch.empty_like(own, memory_format=torch.contiguous_format)]
        parts += [torch.empty_like(parts[0]) for _ in range(self._groups.size - 1)]
        dist.all_gather(parts, own.contiguous(), group=self._groups.group)
        self._own, self._version, self._all = own, version, torch.cat(parts, dim=-1)
        starts = self._all[..., 1:] <= self._all[..., :-1]
        self.documents = None
        if bool(starts.any()):
            self.documents = nn.functional.pad(starts.cumsum(-1), (1, 0))
        return self._all

    def mask(self, window: int | None) -> torch.Tensor | None:
        """Which token sees which, [batch, 1, tokens, tokens]; None: all that are before it."""
        tokens = self._all.shape[-1]
        if self.documents is None and (window is None or window >= tokens):
            return None
        index = torch.arange(tokens, device=self._all.device)
        distance = index[:, None] - index[None, :]
        seen = (distance >= 0)[None]
        if window is not None:
            seen = seen & (distance < window)
        if self.documents is not None:
            seen = seen & (self.documents[:, :, None] == self.documents[:, None, :])
        return seen[:, None]


class SharedAttention:
    """An attention function of Hugging Face's attention interface, which wraps another one.

    `core`: the wrapped function, registered as `name`. `tokens`: the length of all sequences, if it
    is constant. `disable_in_eval`: modules in eval mode attend only to their own tokens.
    """

    def __init__(
        self,
        core: Attention,
        name: str,
        groups: SequenceGroups,
        *,
        tokens: int | None = None,
        disable_in_eval: bool = False,
    ) -> None:
        self.core = core
        self._is_flash = "flash" in name  # which reads documents and windows from its arguments
        self._groups = groups
        self._tokens = tokens
        self._disable_in_eval = disable_in_eval
        self._positions = _Positions(groups)

    def __call__(
        self,
        module: nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        *args: Any,
        **options: Any,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        if not module.training and self._disable_in_eval:
            return self.core(module, query, key, value, attention_mask, *args, **options)
        self._check(module, query, options)
        positions = self._positions.gather(options["position_ids"])
        if positions.shape[0] == 1:
            positions = positions.expand(query.shape[0], -1)
        options["position_ids"] = positions
        mask = None
        if not self._is_flash:
            mask = self._positions.mask(options.get("sliding_window"))
        weights: list[torch.Tensor | None] = []

        def core(*tensors: torch.Tensor) -> torch.Tensor:
            with _key_value_groups(module, tensors[0].shape[1] // tensors[1].shape[1]):
                context, weight = self.core(module, *tensors, mask, *args, **options)
            weights.append(weight)
            return context

        return attend(core, self._groups, query, key, value), weights[0]

    def _check(self, module: nn.Module, query: torch.Tensor, options: dict[str, Any]) -> None:
        positions = options.get("position_ids")
        if positions is None or positions.dim() != 2:
            raise _C.ConfigError(
                "sequence parallelism needs position_ids [batch, tokens] in every call of the "
                "model, since a rank's tokens do not begin at 0: SequenceLoader adds them, or the "
                "collator does"
            )
        if not getattr(module, "is_causal", True) or options.get("is_causal") is False:
            raise _C.ConfigError(
                f"sequence parallelism: {type(module).__name__} lets tokens see later ones; only "
                "causal attention is supported"
            )
        tokens, expected = query.shape[2] * self._groups.size, self._tokens
        if expected is not None and tokens != expected:
            raise _C.ConfigError(
                f"sequence parallelism: got {tokens} tokens, expected seq_length={expected}; set "
                "seq_length_is_variable for batches of other lengths"
            )


@contextlib.contextmanager
def _key_value_groups(module: Any, count: int) -> Iterator[None]:
    """Heads of the query for each of key and value, as this rank has them."""
    before = getattr(module, "num_key_value_groups", None)
    if before is None:
        yield
        return
    module.num_key_value_groups = count
    try:
        yield
    finally:
        module.num_key_value_groups = before


def use_with_transformers(
    model_config: Any,
    implementation: str = "sdpa",
    *,
    tokens: int | None = None,
    disable_in_eval: bool = False,
) -> Callable[[], None]:
    """Makes Hugging Face models attend over shared sequences; call :func:`start` before.

    Replaces the attention function `implementation` for all models of this process.

    - `model_config`: the configuration of the model, whose heads and layer types are checked.
    - `implementation`: "sdpa" or a flash attention that transformers knows.
    - `tokens`: the length of all sequences, if it is constant; other lengths are then an error.
    - `disable_in_eval`: models in eval mode attend only to their own tokens, as full sequences.

    Returns a function that restores the original attention. Raises ConfigError without
    :func:`start`, and for implementations, layers and numbers of heads that are not supported.
    """
    importlib.import_module(torch_seam.TRANSFORMERS)
    torch_seam.check_module(torch_seam.TRANSFORMERS)
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    groups = current()
    if groups is None:
        raise _C.ConfigError("sequence parallelism: call zerorun.sequence.start(size) before")
    known = ALL_ATTENTION_FUNCTIONS.valid_keys()
    if implementation not in known or not ("sdpa" in implementation or "flash" in implementation):
        raise _C.ConfigError(
            f"sequence parallelism: attention '{implementation}' is not supported; use 'sdpa' or a "
            "flash attention that transformers knows, for the model too (attn_implementation=)"
        )
    text = model_config.get_text_config()
    kinds = set(getattr(text, "layer_types", None) or ()) - {"full_attention", "sliding_attention"}
    if kinds:
        raise _C.ConfigError(
            f"sequence parallelism: layers of {', '.join(sorted(kinds))} are not supported, only "
            "full and sliding-window attention"
        )
    heads = text.num_attention_heads
    _check_heads(heads, getattr(text, "num_key_value_heads", None) or heads, groups.size)
    core = ALL_ATTENTION_FUNCTIONS[implementation]
    if isinstance(core, SharedAttention):
        core = core.core
    shared = SharedAttention(
        core, implementation, groups, tokens=tokens, disable_in_eval=disable_in_eval
    )
    ALL_ATTENTION_FUNCTIONS[implementation] = shared

    def stop() -> None:
        if ALL_ATTENTION_FUNCTIONS[implementation] is shared:
            ALL_ATTENTION_FUNCTIONS[implementation] = core

    return stop
