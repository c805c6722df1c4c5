"""One rank of one side of steps.py: trains, and times steps at each rate of the link."""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import peers
from harness import torch_step
from peers import TOKENS, deepspeed_step, ds_config, engine_step, make_model, shard_blocks

ZEROPP = {
    "zero_hpz_partition_size": 2,
    "zero_quantized_weights": True,
    "zero_quantized_gradients": True,
}
# What a side adds to /zero_optimization, and to /zerorun. `alone` computes and sends nothing.
ZERO = {
    "zerorun2": {"stage": 2},
    "zerorun2-qwZ": {"stage": 2, "zero_quantized_weights": True},
    "zerorun2-qgZ": {"stage": 2, "zero_quantized_gradients": True},
    "zerorun2-qgZ-4bits": {"stage": 2, "zero_quantized_gradients": True},
    "zerorun2-groups": {"stage": 2},
    "zerorun2-muon": {"stage": 2},
    "zerorun3": {"stage": 3},
    "zerorun3-groups": {"stage": 3},
    "zerorun3-muon": {"stage": 3},
    "zerorun3-hpZ": {"stage": 3, "zero_hpz_partition_size": 2},
    "zerorun3-zeropp": {"stage": 3, **ZEROPP},
    "zerorun3-zeropp-4bits": {"stage": 3, **ZEROPP},
    "deepspeed2": {"stage": 2},
    "deepspeed3": {"stage": 3},
    "deepspeed3-mics": {"stage": 3, "mics_shard_size": 2},
    "deepspeed3-hpZ": {"stage": 3, "zero_hpz_partition_size": 2},
    "deepspeed3-zeropp": {"stage": 3, **ZEROPP},
}
SIDES = ["alone", "sockets", "ddp", "fsdp2", "fsdp2-hsdp", *ZERO]
UNSHAPED = "unshaped"
SOCKET_BYTES = 128 << 20  # of a rank: more than caches hold, as parameters are


def config_of(side: str, dtype: str) -> dict:
    ours = side.startswith("zerorun")
    config = ds_config(ZERO[side], dtype, ours)
    if ours:
        # So that a small model is gathered before each use, as a large one is.
        config["zero_optimization"] |= {"stage3_max_reuse_distance": 0}
        if side.endswith("muon"):
            config["optimizer"]["type"] = "Muon"
        if side.endswith("groups"):
            config["zerorun"] = {"shard_group_size": "auto"}
        if side.endswith("4bits"):
            config["zerorun"] = {"quantized_gradient_bits": 4}
    return config


def alone_step(model, tokens) -> Callable[[], None]:
    """Forward, backward, and an update of this rank's part of the parameters."""
    import torch
    import torch.distributed as dist

    numel = sum(parameter.numel() for parameter in model.parameters())
    shard = torch.zeros(numel // dist.get_world_size())
    shard.grad = torch.zeros_like(shard)
    optimizer = torch.optim.AdamW([shard], lr=1e-4, fused=True)

    def step() -> None:
        dist.barrier()  # all compute at one time, as ranks do
        model(tokens, labels=tokens).loss.backward()
        model.zero_grad()
        optimizer.step()
        dist.barrier()

    return step


def sockets_step() -> Callable[[], None]:
    """Every rank sends to one of the other host, and receives as much, by plain sockets."""
    import torch.distributed as dist

    rank, here = dist.get_rank(), dist.get_world_size() // 2
    host = os.environ["MASTER_ADDR"]
    ports = [None] * dist.get_world_size()
    listener = socket.create_server((host, 0)) if rank < here else None
    dist.all_gather_object(ports, listener.getsockname()[1] if listener else 0)
    link = (
        listener.accept()[0] if listener else socket.create_connection((host, ports[rank - here]))
    )
    sent, received = bytearray(SOCKET_BYTES), memoryview(bytearray(SOCKET_BYTES))

    def step() -> None:
        dist.barrier()
        sender = threading.Thread(target=link.sendall, args=(sent,))
        sender.start()
        at = 0
        while at < SOCKET_BYTES:
            at += link.recv_into(received[at:])
        sender.join()
        dist.barrier()

    return step


def make_step(side: str, dtype: str, model, tokens) -> Callable[[], None]:
    import torch.distributed as dist

    if side.startswith("zerorun"):
        import zerorun

        return engine_step(zerorun.initialize(model, config=config_of(side, dtype))[0], tokens)
    if side in ("ddp", "fsdp2"):
        return peers.make_step(side, model, dtype, tokens)
    dist.init_process_group("gloo")
    if side == "alone":
        return alone_step(model, tokens)
    if side == "sockets":
        return sockets_step()
    if side == "fsdp2-hsdp":
        from torch.distributed.device_mesh import init_device_mesh

        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replica", "shard"))
        shard_blocks(model.float(), mesh, dtype)
        return torch_step(model, lambda: model(tokens, labels=tokens).loss, 0.01)
    config = config_of(side, dtype)
    if side.endswith("mics"):
        import deepspeed

        with deepspeed.zero.MiCS_Init(module=model, config_dict_or_path=config):
            pass
    return deepspeed_step(model, config, tokens)


def shape(link: str) -> None:
    """This host sends no faster from now on; its peer does the same."""
    # There may be none yet, which is an error.
    subprocess.run(["tc", "qdisc", "del", "dev", "eth0", "root"], capture_output=True, check=False)
    if link == UNSHAPED:
        return
    burst = max(128 << 10, int(rate_of(link) / 1000))  # what goes in a millisecond
    words = f"tc qdisc add dev eth0 root tbf rate {link} burst {burst} limit {16 * burst}"
    subprocess.run(words.split(), check=True)


def rate_of(link: str) -> float:
    """Bytes a second of "10gbit" or "100mbit"."""
    factors = {"gbit": 1e9 / 8, "mbit": 1e6 / 8}
    return float(link[:-4]) * factors[link[-4:]]


def sent_bytes() -> int:
    """Over this host's link, in the direction in which more went."""
    counts = Path("/sys/class/net/eth0/statistics")
    return max(int((counts / name).read_text()) for name in ("tx_bytes", "rx_bytes"))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("side", choices=SIDES)
    parser.add_argument("--shape", required=True)
    parser.add_argument("--dtype", required=True)
    parser.add_argument("--links", nargs="+", required=True)
    parser.add_argument("--steps", type=int, nargs="+", required=True, help="at each rate")
    options = parser.parse_args()
    import torch

    torch.set_num_threads(1)
    model = make_model(options.shape, options.dtype)
    tokens = torch.arange(TOKENS).view(1, TOKENS) * 37 % 256
    step = make_step(options.side, options.dtype, model, tokens)
    step()  # learns orders, and makes connections
    for link, steps in zip(options.links, options.steps, strict=True):
        if os.environ["LOCAL_RANK"] == "0":
            shape(link)
        step()
        begin, before = time.perf_counter(), sent_bytes()
        for _ in range(steps):
            step()
        taken, sent = time.perf_counter() - begin, sent_bytes() - before
        if os.environ["RANK"] == "0":
            figures = {"side": options.side, "link": link, "ms": 1e3 * taken / steps}
            print(json.dumps({**figures, "mib": sent / steps / 2**20}), flush=True)
    os._exit(0)  # what peers do at the end is not measured


if __name__ == "__main__":
    main()
