"""A plain DistributedDataParallel script for torch.distributed.launch and torchrun.

zerorun --nproc_per_node 2 ddp.py              # passes --local_rank=N
zerorun --nproc_per_node 2 --use_env ddp.py    # LOCAL_RANK only, like torchrun
zerorun --nproc_per_node 2 ddp.py --sharded    # shards AdamW's states over the ranks
"""

from __future__ import annotations

import argparse
import gc
import os

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


@record
def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--local_rank", type=int, default=int(os.environ.get("LOCAL_RANK", "0")))
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--sharded", action="store_true", help="shard the optimizer's states")
    arguments = parser.parse_args()
    dist.init_process_group("gloo", init_method="env://")
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(8, 1))
    x = torch.randn(64, 8)
    data = TensorDataset(x, x.sum(1, keepdim=True))
    sampler = DistributedSampler(data, shuffle=True, drop_last=True)
    loader = DataLoader(data, batch_size=8, sampler=sampler)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    if arguments.sharded:  # the only difference
        import zerorun

        optimizer = zerorun.ShardedOptimizer(optimizer)
    for epoch in range(arguments.epochs):
        sampler.set_epoch(epoch)
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(inputs), targets)
            loss.backward()
            optimizer.step()
        total = loss.detach().clone()
        dist.all_reduce(total)
        if dist.get_rank() == 0:
            print(f"epoch {epoch} loss {total.item() / dist.get_world_size():.4f}")
    # PyTorch stops gloo's threads when nothing refers to the group any more. A thread that is still
    # running can abort the exit of the interpreter.
    del model
    gc.collect()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
