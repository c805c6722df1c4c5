"""DeepSpeed's launcher, mapped to zerorun's."""

from deepspeed._placeholders import lazy_submodules

__getattr__ = lazy_submodules(__name__)
