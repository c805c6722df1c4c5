"""Adagrad."""

import torch


class DeepSpeedCPUAdagrad(torch.optim.Adagrad):
    """torch's, on shards."""
