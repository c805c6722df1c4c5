"""Meshes whose dimensions are replicas, shards, parts of a sequence and parts of a model."""

from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from zerorun import sequence
from zerorun.process_state import STATE

from cases.models import *
from cases.parts import adamw, config, random_rows, squared_errors, train_whole, trainer

WIDTH, HIDDEN, ROWS, STEPS = 12, 20, 8, 4

# A sequence is a row each: its parts are as good as other rows.
whole_loss, own_loss = squared_errors(random_rows(40, ROWS, WIDTH))
train = trainer(own_loss, STEPS)
make_mlp = functools.partial(Block, WIDTH, HIDDEN)


def mesh_of(*names: str, sizes: tuple[int, ...] | None = None) -> Any:
    with_process_group()
    return init_device_mesh("cpu", sizes or (2,) * len(names), mesh_dim_names=names)


def start(mesh: Any, stage: int, **keys: Any) -> zerorun.ZeroEngine:
    model = make(make_mlp)
    if "tp" in mesh.mesh_dim_names:
        plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
        parallelize_module(model, mesh["tp"], plan)
    return initialize(model, adamw(model), config=config(2, stage, **keys), device_mesh=mesh)[0]


def case_replicated_and_sharded_dimensions_make_shard_groups() -> None:
    expected = train_whole(make(make_mlp), whole_loss, STEPS)
    for names in (("dp_replicate", "dp_shard"), ("fsdp", "dp")):
        mesh = mesh_of(*names)
        for stage in range(4):
            engine = start(mesh, stage)
            assert engine.batch.train_batch_size == 2 * WORLD_SIZE
            own = mesh.mesh.flatten() if names[0] == "dp_replicate" else mesh.mesh.T.flatten()
            assert engine._ranks.mesh.data_ranks == tuple(own.tolist())
            assert engine._shards.settings.zero.shard_group_size == (2 if stage > 0 else 0)
            assert_close(train(engine), expected)
    same, other = ({"comm_timeout": 30, "shard_group_size": size} for size in (2, 4))
    mesh = mesh_of("replicate", "shard")
    start(mesh, 2, zerorun=same)
    text = "/zerorun/shard_group_size: got 4, but the mesh says 2 ranks"
    refuses(text, start, mesh, 2, zerorun=other)


def case_sequence_and_tensor_dimensions_go_together() -> None:
    expected = train_whole(make(make_mlp), whole_loss, STEPS)
    for names in (("cp", "tp"), ("tp", "sp"), ("sp", "dp")):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(STATE, "sequence", None)
            mesh = mesh_of(*names)
            for stage in range(4):
                engine = start(mesh, stage)
                groups = sequence.current()
                shared = "cp" if "cp" in names else "sp"
                ranks = dist.get_process_group_ranks
                assert ranks(groups.group) == ranks(mesh.get_group(shared))
                assert (groups.rank, groups.size) == (mesh.get_local_rank(shared), 2)
                assert groups.data_rank == (mesh.get_local_rank("dp") if "dp" in names else 0)
                assert engine.batch.train_batch_size == (4 if "dp" in names else 2)
                assert_close(train(engine), expected)


def case_norms_count_each_part_once_whatever_the_dimensions() -> None:
    mesh = mesh_of("dp", "ep", "tp", sizes=(1, 2, 2))
    whole = [torch.randn(4, 4, generator=torch.Generator().manual_seed(n)) for n in range(4)]
    model = nn.Module()
    placed = [
        distribute_tensor(whole[0], mesh["tp"], [Shard(0)]),
        distribute_tensor(whole[1], mesh["ep"], [Shard(0)]),
        distribute_tensor(whole[2], mesh["ep", "tp"], [Replicate(), Shard(1)]),
        whole[3],
    ]
    model.weights = nn.ParameterList(nn.Parameter(each) for each in placed)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    engine = shard(model, stage=2, optimizer=optimizer, device_mesh=mesh)
    local = [p.to_local() if hasattr(p, "to_local") else p for p in engine.module.weights]
    engine.backward(sum(each.square().sum() / 2 for each in local))
    engine.step()
    expected = math.sqrt(sum(each.square().sum().item() for each in whole))
    assert_close([engine.get_global_grad_norm()], [expected])
