"""Models of torch's parallelize_module on a mesh of 2 x 2 ranks, against those of one process."""

import runpy

from torch.distributed.checkpoint import state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor, parallel

from cases.models import *
from cases.parts import adamw, config, train_whole, trainer


def meshes() -> Any:
    with_process_group()
    return init_device_mesh("cpu", (WORLD_SIZE // 2, 2), mesh_dim_names=("dp", "tp"))


def untied() -> nn.Module:
    model = Model(width=16, depth=1)
    model.head = nn.Linear(16, VOCABULARY, bias=False)
    return model


def divided(mesh: Any, seed: int = 0) -> nn.Module:
    """With tensor and sequence parallelism: norms are replicas whose gradients are addends."""
    plan = {
        "embedding": parallel.RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "blocks.*.norm": parallel.SequenceParallel(),
        "blocks.*.up": parallel.ColwiseParallel(input_layouts=Shard(1)),
        "blocks.*.down": parallel.RowwiseParallel(output_layouts=Shard(1)),
        "head": parallel.ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
    }
    return parallel.parallelize_module(make(untied, seed), mesh["tp"], plan)


def own_loss(engine: nn.Module, step: int) -> torch.Tensor:
    ranks = engine.communicator
    return loss_of(engine, batch_of(step).chunk(ranks.world_size)[ranks.rank])


train = trainer(own_loss, 5)


def start(mesh: Any, stage: int, seed: int = 0, private: bool = False) -> zerorun.ZeroEngine:
    model = divided(mesh, seed)
    keys = {"zerorun": {"comm_timeout": 30, "share_parameters": not private}}
    keys["zero_optimization"] = {"stage": stage, "stage3_param_persistence_threshold": 20}
    return initialize(model, adamw(model), config=config(1, stage, **keys), device_mesh=mesh)[0]


def case_a_parallel_model_trains_like_the_whole_one() -> None:
    mesh = meshes()
    whole = make(untied)
    expected = train_whole(whole, whole_loss, 5)
    for stage, private in ((0, False), (1, False), (2, False), (3, False), (3, True)):
        engine = start(mesh, stage, private=private)
        assert_close(train(engine), expected)
        full = engine.full_state_dict(rank0_only=False)
        for name, parameter in engine.module.named_parameters():
            assert isinstance(parameter, DTensor), name
            if stage < 3:
                assert torch.equal(engine.state_dict()[name].full_tensor(), full[name])
            torch.testing.assert_close(full[name], whole.state_dict()[name], rtol=1e-4, atol=1e-5)
        weight = engine.module.blocks[0].up.weight
        master = safe_get_full_fp32_param(weight)
        assert torch.equal(master.full_tensor(), full["blocks.0.up.weight"])
        safe_set_full_fp32_param(weight, torch.zeros_like(master))
        with GatheredParameters(weight):
            assert weight.full_tensor().abs().max().item() == 0
        engine.destroy()
        assert isinstance(weight, DTensor)


def case_lamb_has_the_norms_of_whole_tensors() -> None:
    mesh = meshes()
    lamb = {"type": "Lamb", "params": {"lr": 0.02, "weight_decay": 0.1}}
    keys = {"optimizer": lamb, "gradient_clipping": 0.0}
    expected = train(initialize(make(untied), config=config(1, 2, **keys))[0])
    for stage in (1, 3):
        engine, *_ = initialize(divided(mesh), config=config(1, stage, **keys), device_mesh=mesh)
        assert_close(train(engine), expected)


def case_a_checkpoint_has_the_pieces(folder: Path) -> None:
    mesh = meshes()
    engine = start(mesh, 2)
    train(engine, 2)
    engine.save_checkpoint(folder)
    engine.save_16bit_model(folder)
    if engine._ranks.job.rank == 0:
        saved = torch.load(folder / "pytorch_model.bin")
        assert saved["blocks.0.up.weight"].shape == (64, 16)
    expected = train(engine, 2, first=2)
    engine = start(mesh, 3, seed=3)
    engine.load_checkpoint(folder)
    assert train(engine, 2, first=2) == expected
    refuses("under one name", state_dict.get_model_state_dict, engine.module)


def case_state_dicts_of_torch_have_dtensors() -> None:
    engine = start(meshes(), 2)
    model = engine.module
    state = {name: value.clone() for name, value in state_dict.get_model_state_dict(model).items()}
    expected, weight = state["blocks.0.up.weight"].full_tensor(), model.blocks[0].up.weight
    train(engine, 1)
    state_dict.set_model_state_dict(model, state)
    for found in (weight, safe_get_full_fp32_param(weight)):
        assert torch.equal(found.full_tensor(), expected)
    refuses("under one name", state_dict.get_optimizer_state_dict, model, engine.optimizer)


def case_the_example_trains() -> None:
    meshes()
    path = ROOT / "examples" / "python" / "tensor_parallel.py"
    printed = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(printed):
        patch.setattr(sys, "argv", [str(path)])
        runpy.run_path(str(path), run_name="__main__")
    if RANK == 0:
        losses = [float(line.split()[-1]) for line in printed.getvalue().splitlines()[:-1]]
        assert losses[-1] < 0.8 * losses[0]
        assert "'0.weight': (256, 64)" in printed.getvalue()


def case_models_of_fsdp_on_meshes() -> None:
    mesh = meshes()
    whole = make(untied)
    expected = train_whole(whole, whole_loss, 3)
    copies = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp_replicate", "dp_shard"))
    for stage in (1, 3):
        model = fully_shard(make(untied), mesh=copies)
        given = {"config": config(1, stage), "device_mesh": copies}
        engine = initialize(model, adamw(model), **given)[0]
        assert_close(train(engine, 3), expected)
    fewer = fully_shard(make(untied), mesh=mesh["tp"])
    refuses("give fully_shard (DistributedConfig) a mesh of all", shard, fewer, stage=3)
    part = fully_shard(divided(mesh), mesh=mesh["dp"])
    refuses("by fully_shard and by tensor parallelism", shard, part, stage=3, device_mesh=mesh)


def case_placements_that_cannot_be_trained_are_errors() -> None:
    mesh = meshes()
    model = divided(mesh)
    for names, text in (
        (("a", "b"), "expected, for ranks with other data, one of"),
        (("dp", "replicat"), "named 'replicat' (did you mean 'replicate'?)"),
    ):
        wrong = init_device_mesh("cpu", (2, 2), mesh_dim_names=names)
        refuses(text, shard, model, stage=1, device_mesh=wrong)
    refuses("give the whole mesh", shard, model, stage=1, device_mesh=mesh["dp"])
    refuses("give initialize the whole", shard, model, stage=1)
    odd = nn.Linear(4, 4, bias=False)
    local = DTensor.from_local(torch.zeros(4, 4), mesh["tp"], [Partial()], run_check=False)
    odd.weight = nn.Parameter(local)
    refuses("expected Shard or Replicate", shard, odd, stage=1, device_mesh=mesh)
    odd.weight = nn.Parameter(distribute_tensor(torch.zeros(4, 4), mesh["dp"], [Shard(0)]))
    refuses("parallelize_module its other dimension alone", shard, odd, stage=1, device_mesh=mesh)
