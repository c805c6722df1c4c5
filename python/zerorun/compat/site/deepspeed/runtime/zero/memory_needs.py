"""DeepSpeed's estimates of memory, answered by `zerorun plan` for every stage at once."""

import subprocess
import sys
from typing import Any

from torch import nn


def print_plan(total_params: int, num_gpus_per_node: int, num_nodes: int) -> None:
    """Prints the bytes of each rank and host for a model of that size."""
    command = ["zerorun", "plan", "--model", str(total_params)]
    command += ["--world_size", str(num_gpus_per_node * num_nodes)]
    command += ["--ranks_per_host", str(num_gpus_per_node)]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    if found.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {found.stderr.strip()}")
    sys.stdout.write(found.stdout)


def estimate_all_live(
    model: nn.Module, num_gpus_per_node: int = 1, num_nodes: int = 1, **_ignored: Any
) -> None:
    """For a model that is there. zerorun counts buffers, so a factor for them is not needed."""
    counts = {p: getattr(p, "ds_numel", p.numel()) for p in model.parameters()}
    print_plan(sum(counts.values()), num_gpus_per_node, num_nodes)


def estimate_all_cold(
    total_params: int,
    largest_layer_params: int = 0,
    num_gpus_per_node: int = 1,
    num_nodes: int = 1,
    **_ignored: Any,
) -> None:
    """For a number of parameters. zerorun takes the largest layer from the size."""
    print_plan(total_params, num_gpus_per_node, num_nodes)
