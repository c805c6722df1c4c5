"""Models that FSDP2 has sharded, taken over: against models that it has not."""

import ctypes

import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from zerorun.interchange.formats import open_source
from zerorun.model.adoption import adopt

from cases.models import *


def mesh(*shape: int, names: tuple[str, ...] = ("fsdp",)) -> Any:
    with_process_group()
    return init_device_mesh("cpu", shape or (WORLD_SIZE,), mesh_dim_names=names)


def sharded(model: nn.Module, over: Any) -> nn.Module:
    for block in model.blocks:
        fully_shard(block, mesh=over)
    fully_shard(model, mesh=over)
    assert all(isinstance(parameter, DTensor) for parameter in model.parameters())
    return model


def case_it_trains_like_one_that_was_not_sharded(folder: Path) -> None:
    for stage in range(4):
        _, engine = started(config(stage))
        expected = train(engine, 5)
        weights = engine.full_state_dict(rank0_only=False)
        model = sharded(make(), mesh())
        model.embedding.weight.note = "kept"
        engine = initialize(model, adamw(model), config=config(stage))[0]
        assert type(model) is Model
        assert model.embedding.weight.note == "kept"
        assert not any(isinstance(parameter, DTensor) for parameter in model.parameters())
        assert train(engine, 5) == expected
        assert_same(engine.full_state_dict(rank0_only=False), weights)
        engine.save_checkpoint(folder / str(stage))
        engine.load_checkpoint(folder / str(stage))


def case_after_a_forward_with_parameters_of_each_kind() -> None:
    """After it the root's parameters are full until the backward."""
    expected = train(started(config(2))[1], 3)

    def made(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.AdamW(parameters, lr=1e-2, weight_decay=0.1)

    for kind in (list, iter, lambda parameters: [{"params": list(parameters)}]):
        model = sharded(make(), mesh())
        parameters = kind(model.parameters())
        with torch.no_grad():
            model(torch.zeros(1, 4, dtype=torch.int64))
        assert train(initialize(model, made, parameters, config=config(2))[0], 3) == expected
    mixed = make()  # DTensors beside an ordinary parameter
    fully_shard(mixed, mesh=mesh(), ignored_params={mixed.embedding.weight})
    engine = initialize(mixed, adamw(mixed), config=config(2))[0]
    assert train(engine, 3) == expected
    engine.destroy()
    fully_shard(mixed, mesh=mesh())  # nothing of the first is left


class Doubling(Model):
    def doubled(self, tokens: torch.Tensor) -> torch.Tensor:
        return 2 * self(tokens)


def case_methods_and_attributes_of_the_program_stay() -> None:
    plain, tokens = make(Doubling), torch.zeros(1, 4, dtype=torch.int64)
    expected = plain.doubled(tokens)
    model = sharded(make(Doubling), mesh())
    for _ in range(2):
        register_fsdp_forward_method(model, "doubled")
    model.doubled(tokens)
    model.blocks[0]._device_mesh = model._tp_size = "the program's"
    shard(model, stage=3)
    assert torch.equal(model.doubled(tokens), expected)
    assert model.blocks[0]._device_mesh == model._tp_size == "the program's"


def case_ranks_wait_for_each_other_as_long_as_the_program_says() -> None:
    with mock.patch.object(communicator, "world", wraps=communicator.world) as world:
        shard(sharded(make(), mesh()), timeout=20.0)
    assert world.call_args_list[0].args == (20.0,)


def case_no_rank_holds_a_full_copy() -> None:
    """One parameter of eight is whole at a time, for which torch has two buffers."""
    ctypes.CDLL(None).mallopt(-3, 1 << 20)  # M_MMAP_THRESHOLD: what is freed goes back at once
    layers, one = 8, 16 << 20  # bytes
    adopt(sharded_layers(1, 64), None, None, None, 3)
    model = sharded_layers(layers, 2048)
    before = memory_of_process("VmRSS")
    adopt(model, None, None, None, 3)
    assert memory_of_process("VmHWM") - before < 3 * one < layers * one / WORLD_SIZE
    # PyTorch's thread for gloo lets go of the last call's buffers after it has said it is done.
    deadline = time.monotonic() + 10
    while memory_of_process("VmRSS") - before >= one and time.monotonic() < deadline:
        time.sleep(0.01)
    assert memory_of_process("VmRSS") - before < one
    shard(model, stage=3).destroy()


def sharded_layers(count: int, width: int) -> nn.Module:
    model = nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(count)))
    fully_shard(model, mesh=mesh())
    return model


def case_what_cannot_be_adopted_is_an_error() -> None:
    over = mesh()
    model = sharded(make(), over)
    optimizer = adamw(model)
    model(torch.zeros(1, 4, dtype=torch.int64)).sum().backward()
    optimizer.step()
    text = "the optimizer has states of DTensors: make a new one"
    refuses(text, initialize, model, optimizer, config=config(2))
    assert isinstance(next(model.parameters()), DTensor)  # as before
    hooked = sharded(make(), over)
    hooked.head.weight.register_post_accumulate_grad_hook(lambda _parameter: None)
    refuses("has hooks for its gradient", shard, hooked, stage=2)
    with torch.device("meta"):
        unset = sharded(make(), over)
    text = "leave fully_shard out, or give the model its values first"
    raises(ValueError, text, lambda: shard(unset, weights=make().state_dict()))
    assert isinstance(next(unset.parameters()), DTensor)
    torch.manual_seed(0)
    odd = nn.Sequential(nn.Linear(4, 4 + 4 * RANK, bias=False), nn.Linear(4, 4))
    different = odd[RANK:]
    fully_shard(different, mesh=over)
    refuses("make the same model on every rank", shard, different, stage=3)


def case_its_sharded_safetensors_are_loaded(folder: Path) -> None:
    """Rows of FSDP, and columns of tensor parallelism."""
    # Without the second name of a tied one.
    expected = {name: value.detach() for name, value in make().named_parameters()}
    for dim in (0, 1):
        state = {
            name: distribute_tensor(value, mesh(), [Shard(dim)]) if value.dim() > dim else value
            for name, value in expected.items()
        }
        saved = folder / str(dim)
        writer = HuggingFaceStorageWriter(str(saved), save_distributed=True)
        dcp.save(state, storage_writer=writer)
        engine = initialize(make(seed=3), config=config(1))[0]
        engine.load_checkpoint(saved)
        found = engine.full_state_dict(rank0_only=False)
        assert_same({name: found[name] for name in expected}, expected)
        first = min(saved.glob("shard-*.safetensors"))
        for text, damage in (
            ("is missing", first.unlink),
            ("no DCP_SHARDING_INFO in its", lambda: save_file({"a": torch.zeros(2)}, first)),
        ):
            dist.barrier()
            if RANK == 0:
                damage()
            dist.barrier()
            raises(zerorun.CheckpointError, text, open_source, str(saved))
