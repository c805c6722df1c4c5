"""What the launcher can do."""


def is_torch_elastic_compatible() -> bool:
    """`zerorun --elastic_training` needs nothing of PyTorch."""
    return True
