"""The abilities of the launcher."""


def is_torch_elastic_compatible() -> bool:
    """`zerorun --elastic_training` needs nothing of PyTorch."""
    return True
