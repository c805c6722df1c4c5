"""The version that this stands in for; nothing was built for it."""

from deepspeed import git_branch, git_hash, version
from deepspeed.ops.op_builder.all_ops import ALL_OPS

__all__ = ["git_branch", "git_hash", "installed_ops", "version"]

installed_ops = dict.fromkeys(ALL_OPS, False)
