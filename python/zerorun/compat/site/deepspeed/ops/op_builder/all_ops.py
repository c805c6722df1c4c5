"""Every builder of an operator, by the operator's name."""

from deepspeed._names import modules, names_of
from deepspeed.ops import op_builder

_PACKAGE = "ops.op_builder."
_BASES = {"CPUOpBuilder", "CUDAOpBuilder", "OpBuilder", "TorchCPUOpBuilder"}
_CLASSES = {
    name
    for module in modules()
    if module.startswith(_PACKAGE)
    # Other subpackages are of other accelerators.
    and "." not in module.removeprefix(_PACKAGE).removeprefix("cpu.")
    for name in names_of(module).classes
    if name.endswith("Builder") and name not in _BASES
}
ALL_OPS = {
    builder.NAME: builder() for builder in (getattr(op_builder, name) for name in sorted(_CLASSES))
}
