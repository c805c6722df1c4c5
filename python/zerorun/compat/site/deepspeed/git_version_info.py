"""The version that this stands in for; nothing was built for it."""

import torch

from deepspeed import git_branch, git_hash, version  # noqa: F401 - scripts take them from here
from deepspeed.ops.op_builder import ALL_OPS

installed_ops = dict.fromkeys(ALL_OPS, False)


def _short(found: str | None) -> str:
    """Major and minor version; of what is not there "0.0"."""
    return ".".join((found or "0.0").split(".")[:2])


torch_info = {
    "version": _short(torch.__version__),
    "bf16_support": True,
    "cuda_version": _short(torch.version.cuda),
    "nccl_version": "0.0",  # zerorun's is loaded when there are GPUs
    "hip_version": _short(torch.version.hip),
}
