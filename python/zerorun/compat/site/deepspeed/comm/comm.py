"""As deepspeed.comm."""

from deepspeed.comm import *  # noqa: F403
