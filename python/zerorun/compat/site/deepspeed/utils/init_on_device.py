"""Where models are made."""

import contextlib
from collections.abc import Iterator

import torch


@contextlib.contextmanager
def OnDevice(  # noqa: N802 - DeepSpeed's name
    dtype: torch.dtype, device: str = "meta", enabled: bool = True
) -> Iterator[None]:
    """Tensors made within are of `dtype` on `device`."""
    if not enabled:
        yield
        return
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            yield
    finally:
        torch.set_default_dtype(before)
