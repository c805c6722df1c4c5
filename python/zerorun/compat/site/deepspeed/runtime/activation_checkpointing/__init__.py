"""Activation checkpointing."""

from deepspeed._placeholders import lazy_submodules

__getattr__ = lazy_submodules(__name__)
