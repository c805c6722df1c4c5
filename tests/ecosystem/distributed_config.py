"""Models that transformers has sharded itself train here as those that it has not."""

import functools
from typing import Any

import torch
import torch.distributed as dist
import zerorun
from program import Figures, mean
from tiny import VOCABULARY, llama
from transformers import AutoModelForCausalLM
from transformers.distributed import DistributedConfig

STEPS = 3


def train(model: Any, stage: int, rank: int, ranks: int, **options: Any) -> list[float]:
    """The mean losses, and a save_pretrained by transformers where the model is whole."""
    optimizer = functools.partial(torch.optim.AdamW, lr=1e-2)
    engine = zerorun.shard(model, stage=stage, optimizer=optimizer, clip=1.0, **options)
    losses = []
    for step in range(STEPS):
        generator = torch.Generator().manual_seed(step)
        ids = torch.randint(0, VOCABULARY, (4, 8), generator=generator).chunk(ranks)[rank]
        loss = engine(input_ids=ids, labels=ids).loss
        engine.backward(loss)
        engine.step()
        losses.append(mean(loss))
    engine.destroy()
    return losses


def figures(given: Any) -> Figures:
    folder = given.figures.parent
    rank, ranks = dist.get_rank(), dist.get_world_size()
    if rank == 0:
        llama().save_pretrained(folder / "model")
    dist.barrier()

    def load(**sizes: int) -> Any:
        config = DistributedConfig(**sizes) if sizes else None
        return AutoModelForCausalLM.from_pretrained(folder / "model", distributed_config=config)

    for stage in (0, 2, 3):
        expected = train(load(), stage, rank, ranks)
        model = load(fsdp_size=ranks)
        assert model.is_distributed_loading_by_transformers
        assert train(model, stage, rank, ranks) == expected
        assert not model.is_distributed_loading_by_transformers
        model.save_pretrained(folder / f"adopted{stage}", is_main_process=rank == 0)
    expected = train(load(), 2, 0, 1)  # every rank has all data, as with parts of the model
    divided = load(tp_size=ranks)
    found = train(divided, 2, 0, 1, device_mesh=divided._device_mesh)
    differences = [abs(a - b) / b for a, b in zip(found, expected, strict=True)]
    assert max(differences) <= 1e-5
    # Sharded files of each kind are loaded into a model of other values.
    weights = load().state_dict()
    for name, sizes in (("fsdp", {"fsdp_size": ranks}), ("tp", {"tp_size": ranks})):
        load(**sizes).save_pretrained(folder / name, distributed_checkpoint=True)
        other = llama()
        with torch.no_grad():
            for parameter in other.parameters():
                parameter.zero_()
        engine = zerorun.shard(other, stage=3)
        engine.load_checkpoint(folder / name)
        full = engine.full_state_dict(rank0_only=False)
        assert all(torch.equal(full[key], weights[key]) for key in weights)
        engine.destroy()
    assert (folder / "adopted2" / "model.safetensors").exists()
    return {"tensor parallel": differences}
