"""PyTorch's tensor parallelism, combined with zerorun's data parallelism.

zerorun --num_gpus 4 tensor_parallel.py

Two neighbouring ranks share each layer. The two ranks that hold the same part of it each keep half
of its optimizer states and gradients.
"""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
import zerorun
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

WIDTH, STEPS = 64, 20


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--stage", type=int, default=2)
    parser.add_argument("--local_rank", type=int, default=0)
    stage = parser.parse_args().stage

    if not dist.is_initialized():
        dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size() // 2, 2), mesh_dim_names=("dp", "tp"))

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))
    parallelize_module(model, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    engine = zerorun.shard(model, stage=stage, optimizer=optimizer, clip=1.0, device_mesh=mesh)

    torch.manual_seed(engine.communicator.rank)  # same data on ranks that share a layer
    for step in range(STEPS):
        x = torch.randn(32, WIDTH)
        loss = F.mse_loss(engine(x), x.roll(1, -1))
        engine.backward(loss)
        engine.step()
        if step % 5 == 0 or step == STEPS - 1:
            total = loss.detach().clone()
            engine.communicator.all_reduce(total)
            if dist.get_rank() == 0:
                mean = total.item() / engine.communicator.world_size
                print(f"step {step} loss {mean:.4f}", flush=True)
    whole = engine.full_state_dict()  # on rank 0, without DTensors
    if whole is not None:
        print("saved tensors:", {name: tuple(values.shape) for name, values in whole.items()})


if __name__ == "__main__":
    main()
