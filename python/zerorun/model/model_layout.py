"""A PyTorch model as an engine sees it: its parameters, once each, with their groups."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from zerorun import _C
from zerorun.agreement import texts_of_all
from zerorun.model import tensors
from zerorun.model.engine_ranks import EngineRanks, Mesh, check_mesh
from zerorun.model.tensors import check_placements, is_distributed, local_of
from zerorun.model.units import Unit, UnitPolicy, find_units, plain_name
from zerorun.program_warning import logger

DTYPES = {name: tensors.CORE_DTYPES[name] for name in ("fp32", "bf16", "fp16")}  # that are trained


def param_groups_of(model: nn.Module, model_parameters: Any) -> list[dict[str, Any]]:
    """`model_parameters` (None: all that require a gradient) as a list of torch's group dicts."""
    if model_parameters is None:
        return [{"params": [p for p in model.parameters() if p.requires_grad]}]
    given = list(model_parameters)
    if given and isinstance(given[0], Mapping):
        for group in given:
            params = group["params"]
            group["params"] = [params] if isinstance(params, torch.Tensor) else list(params)
        return given
    return [{"params": [p for p in given if p.requires_grad]}] if given else []


@dataclass
class ModelLayout:  # size: a table, each column of which somebody reads
    """A model's parameters in the engine's order (`ids`), with their first names and units."""

    names: dict[nn.Parameter, str] = field(default_factory=dict)
    shapes: dict[nn.Parameter, torch.Size] = field(default_factory=dict)
    aliases: list[tuple[str, nn.Parameter]] = field(default_factory=list)
    group_of: dict[nn.Parameter, int] = field(default_factory=dict)
    units: list[Unit] = field(default_factory=list)
    ids: dict[nn.Parameter, int] = field(default_factory=dict)
    trainable: set[nn.Parameter] = field(default_factory=set)  # when the engine was made
    frozen: set[nn.Parameter] = field(default_factory=set)  # likewise
    # Frozen ones of another dtype than the engine's (quantized weights, say), which it keeps bit by
    # bit; and those that it cannot keep, with their names: they stay in full on every rank.
    own_dtype: set[nn.Parameter] = field(default_factory=set)
    outside: dict[nn.Parameter, str] = field(default_factory=dict)
    columns: set[nn.Parameter] = field(default_factory=set)  # matrices whose outputs are columns
    group_count: int = 0
    dtype: str = "fp32"  # of the parameters: fp32, bf16 or fp16
    # Of experts, which other ranks have others of: who has them (ParameterSpec.ranks), and a name
    # that tells them apart from those. `elsewhere`: those others, by this rank's one.
    ranks_of: dict[nn.Parameter, int] = field(default_factory=dict)
    saved_names: dict[nn.Parameter, str] = field(default_factory=dict)
    elsewhere: dict[nn.Parameter, list[_C.ParameterSpec]] = field(default_factory=dict)
    mesh: Mesh | None = None  # where ranks hold different parts of a model

    @classmethod
    def of(
        cls,
        model: nn.Module,
        groups: Iterable[Mapping[str, Any]],
        dtype: str,
        units: UnitPolicy | None = None,
        mesh: Mesh | None = None,
    ) -> "ModelLayout":
        """`dtype`: the configuration's; 16 bits are for all parameters, fp32 is for none: they have
        what they have. Raises ConfigError for parameters without data, for those of dtypes that
        cannot be trained together, and for groups that are not the model's."""
        parameters = model.named_parameters(remove_duplicate=False)
        named = ((plain_name(name), parameter) for name, parameter in parameters)
        layout = cls.of_parameters(named, groups, dtype, mesh)
        named_so = (m for m in model.modules() if type(m).__name__ == "Conv1D" and hasattr(m, "nf"))
        weights = (m._parameters.get("weight") for m in named_so)  # of transformers' class
        layout.columns = {weight for weight in weights if weight is not None}
        for unit in find_units(model, units):
            unit.parameters = [p for p in unit.parameters if p not in layout.outside]
            if unit.parameters:
                layout.units.append(unit)
        return layout

    @classmethod
    def of_parameters(
        cls,
        parameters: Iterable[tuple[str, nn.Parameter]],
        groups: Iterable[Mapping[str, Any]],
        dtype: str,
        mesh: Mesh | None = None,
    ) -> "ModelLayout":
        """The layout of parameters that belong to no module in particular."""
        layout = cls(mesh=mesh)
        given = list(parameters)
        layout.dtype = _common_dtype(given) if dtype == "fp32" else dtype
        kept = set(DTYPES.values()) if dtype != "fp32" else {DTYPES[layout.dtype]}
        for name, parameter in given:
            if parameter in layout.names:
                layout.aliases.append((name, parameter))
                continue
            whole = tensors.stays_whole(parameter)
            if parameter.dtype not in kept or tensors.is_packed(parameter) or whole:
                _check_frozen(name, parameter)
                if whole:
                    layout.outside.setdefault(parameter, name)
                    continue
                layout.own_dtype.add(parameter)
            _check(name, parameter)
            check_mesh(name, parameter, mesh)
            layout.names[parameter] = name
            layout.shapes[parameter] = getattr(parameter, "ds_shape", local_of(parameter).shape)
        layout._assign_groups(groups)
        layout.trainable = {p for p in layout.group_of if p.requires_grad}
        layout.frozen = {p for p in layout.names if not p.requires_grad} | layout.outside.keys()
        return layout

    def _assign_groups(self, groups: Iterable[Mapping[str, Any]]) -> None:
        for index, group in enumerate(groups):
            self.group_count = index + 1
            for position, parameter in enumerate(group["params"]):
                where = f"parameter {position} of optimizer group {index}"
                if parameter in self.outside:
                    continue  # it is frozen
                if parameter not in self.names:
                    shape = tuple(getattr(parameter, "ds_shape", parameter.shape))
                    raise _C.ConfigError(
                        f"{where}, of shape {shape}, is not a parameter of the model: make the "
                        "optimizer from model.parameters() of the model given to initialize"
                    )
                if parameter in self.group_of:
                    raise _C.ConfigError(f"{where}, {self.names[parameter]}, is in two groups")
                self.group_of[parameter] = index

    def is_trainable(self, parameter: nn.Parameter) -> bool:
        return parameter in self.trainable

    def frozen_since(self) -> list[nn.Parameter]:
        """Parameters that could be trained when the engine was made, and are frozen now."""
        return [p for p in self.group_of if not p.requires_grad and p in self.trainable]

    def check_frozen(self) -> None:
        """Raises ConfigError for a parameter that was unfrozen since."""
        found = next((parameter for parameter in self.frozen if parameter.requires_grad), None)
        if found is not None:
            name = self.names.get(found) or self.outside[found]
            raise _C.ConfigError(
                f"parameter {name} was frozen when initialize was called, and cannot be "
                "trained now: unfreeze it before"
            )

    def check_unchanged(self, model: nn.Module) -> None:
        """Raises ConfigError for parameters that joined the model since."""
        for name, parameter in model.named_parameters():
            if parameter.requires_grad and parameter not in self.names:
                raise _C.ConfigError(
                    f"parameter {name} joined the model after initialize, and would never be "
                    "trained: change the model before"
                )

    def specs(self) -> list[_C.ParameterSpec]:
        """The engine's list; sets `ids`."""
        unit_of = {p: unit.name for unit in self.units for p in unit.parameters}
        specs: list[_C.ParameterSpec] = []
        for parameter in self.names:
            spec = self._spec_of(parameter, unit_of.get(parameter, ""))
            others = self.elsewhere.get(parameter, [])
            for other in others:  # an index means the same parameter and module on every rank
                other.module, other.use_muon = spec.module, spec.use_muon
                other.outputs_are_columns = spec.outputs_are_columns
            variants = sorted([spec, *others], key=lambda each: each.name)
            self.ids[parameter] = len(specs) + variants.index(spec)
            specs += variants
        for name, parameter in self.aliases:
            if parameter in self.ranks_of:
                raise _C.ConfigError(f"{name} is tied to an expert's parameter: copy it instead")
            owner = specs[self.ids[parameter]]
            specs.append(
                _C.ParameterSpec(
                    name, owner.shape, owner.module, owner.group, owner.trainable, owner.name
                )
            )
            specs[-1].dtype = owner.dtype
        return specs

    def _spec_of(self, parameter: nn.Parameter, module: str) -> _C.ParameterSpec:
        spec = _C.ParameterSpec(
            self.saved_name(parameter),
            self.stored_shape(parameter),
            module,
            self.group_of.get(parameter, 0),
            self.is_trainable(parameter),
        )
        # Matrices inside the model, or what the parameter's own `use_muon` says, as DeepSpeed.
        inside = not any(part in self.names[parameter].lower() for part in ("embed", "lm_head"))
        is_matrix = len(self.shapes[parameter]) > 1
        spec.use_muon = is_matrix and getattr(parameter, "use_muon", inside)
        spec.outputs_are_columns = parameter in self.columns
        spec.dtype = self.core_dtype(parameter)
        spec.ranks = self.ranks_of.get(parameter, 0)
        if self.mesh is not None:
            spec.counted = self.mesh.counts(parameter)
            spec.divided = self.mesh.divides(parameter)
            spec.replica = self.mesh.repeats(parameter)
        return spec

    def core_dtype(self, parameter: nn.Parameter) -> str | None:
        """ParameterSpec.dtype of it."""
        return tensors.core_dtype_of(parameter.dtype) if parameter in self.own_dtype else None

    def exact_dtypes(self) -> dict[str, torch.dtype]:
        """By name in checkpoints, where the core's dtype does not say what the bytes are."""
        return {
            self.saved_name(p): p.dtype
            for p in self.names  # in their order
            if p in self.own_dtype
            and (
                tensors.is_packed(p)
                or p.dtype != tensors.CORE_DTYPES[tensors.core_dtype_of(p.dtype)]
            )
        }

    def stored_shape(self, parameter: nn.Parameter) -> list[int]:
        shape = self.shapes[parameter]
        own = parameter in self.own_dtype
        return tensors.stored_shape(shape, parameter.dtype) if own else list(shape)

    def flat(self, parameter: nn.Parameter, values: torch.Tensor) -> torch.Tensor:
        """The parameter's full values in the order of the engine's memory, and in its dtype where
        that may not change."""
        flat = values.detach().resolve_conj().resolve_neg().contiguous().flatten()
        return tensors.as_bytes(flat) if parameter in self.own_dtype else flat

    def shaped(self, parameter: nn.Parameter, flat: torch.Tensor) -> torch.Tensor:
        """The parameter in flat memory of the engine's."""
        if parameter in self.own_dtype:
            flat = flat.view(parameter.dtype)
        return flat.view(self.shapes[parameter])

    def saved_name(self, parameter: nn.Parameter) -> str:
        """The parameter's name among those of all ranks."""
        return self.saved_names.get(parameter, self.names[parameter])


def _common_dtype(parameters: list[tuple[str, nn.Parameter]]) -> str:
    """The trainable parameters' dtype; without any that of most elements. Raises ConfigError for
    several."""
    elements: Counter[torch.dtype] = Counter()
    trainable: dict[torch.dtype, str] = {}
    for name, parameter in parameters:
        if tensors.is_packed(parameter) or tensors.is_composed(parameter):
            continue
        elements[parameter.dtype] += getattr(parameter, "ds_numel", parameter.numel())
        if parameter.requires_grad:
            trainable.setdefault(parameter.dtype, name)
    names = {dtype: name for name, dtype in DTYPES.items()}
    found = [dtype for dtype in trainable if dtype in names]
    if len(found) > 1:
        examples = " and ".join(f"{trainable[dtype]} is {dtype}" for dtype in found[:2])
        raise _C.ConfigError(
            f"parameters that are trained have several dtypes: {examples}. Cast the model to one "
            "(model.float()), or let bf16.enabled or fp16.enabled make all of them 16 bits"
        )
    candidates = found or [dtype for dtype, _ in elements.most_common() if dtype in names]
    return names[candidates[0]] if candidates else "fp32"


def _check_frozen(name: str, parameter: nn.Parameter) -> None:
    """Raises ConfigError for a parameter of a dtype that cannot be trained, if it should be."""
    if parameter.requires_grad:
        composed = f"{type(parameter).__name__}, made of other tensors"
        kind = composed if tensors.is_composed(parameter) else parameter.dtype
        raise _C.ConfigError(
            f"parameter {name} is {kind}; expected fp32, bf16 or fp16 of what is "
            "trained: cast the model (model.float()), or freeze the parameter"
        )


def _check(name: str, parameter: nn.Parameter) -> None:
    check_placements(name, parameter)
    if getattr(parameter, "_zerorun_shards", None) is not None:
        raise _C.ConfigError(
            f"parameter {name} belongs to an engine already: call that engine's destroy() first"
        )
    if parameter.is_meta:
        raise _C.ConfigError(
            f"parameter {name} is on the meta device and has no values: give zerorun.shard its "
            "init= or weights=, or materialise the model (model.to_empty(device='cpu') and its "
            "initialisation, or from_pretrained) before initialize"
        )


# --- copies on tensor-parallel ranks ---

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by bytes


def warn_of_different_replicas(layout: ModelLayout, ranks: EngineRanks) -> None:
    """Warns of a parameter that is not marked as a part and has other values on other ranks.

    Norms would count it on one rank only, and nothing makes such copies equal later. Collective.
    """
    if ranks.tensor is None or layout.mesh is None:
        return
    mesh = layout.mesh
    replicas = {
        name: _sum_of_bits(parameter)
        for parameter, name in layout.names.items()
        if not is_distributed(parameter) and not mesh.divides(parameter)
    }
    sums = torch.stack(list(replicas.values())).tolist() if replicas else []
    found = dict(zip(replicas, sums, strict=True))
    others = [json.loads(text) for text in texts_of_all(json.dumps(found), ranks.tensor)]
    apart = [n for n, value in found.items() if any(o.get(n, value) != value for o in others)]
    if apart and ranks.tensor.rank == 0:
        logger.warning(
            "%d parameters differ between tensor-parallel ranks %s, and are not marked as parts; "
            "the first is %s. Norms count them on the first of these ranks only, and copies that "
            "begin apart stay apart: seed them alike, or mark them (parameter.model_parallel = "
            "True)",
            len(apart),
            list(mesh.tensor_ranks or ()),
            apart[0],
        )


def _sum_of_bits(parameter: nn.Parameter) -> torch.Tensor:
    values = parameter.detach().contiguous()
    integers = _INTEGERS.get(values.element_size(), torch.uint8)
    return values.view(integers).sum(dtype=torch.int64)
