"""Models that are divided among ranks (2 x 2), against their mathematics in one process."""

from cases import parts
from cases.models import *
from cases.parts import CLIP, adamw, random_rows, squared_errors, train_whole, trainer

TENSOR = 2  # ranks that share a layer; neighbours, as Megatron numbers them
DATA = WORLD_SIZE // TENSOR
WIDTH, HIDDEN, ROWS, STEPS = 24, 40, 8, 6


def megatron() -> Any:
    """An object like Megatron's parallel_state, of this rank."""
    with_process_group()
    made = types.SimpleNamespace()
    everyone = torch.arange(WORLD_SIZE).view(DATA, TENSOR)
    for name, lists in (("tensor", everyone.tolist()), ("data", everyone.T.tolist())):
        for ranks in lists:
            group = dist.new_group(ranks)
            if RANK in ranks:
                setattr(made, name, group)
    made.get_data_parallel_group = lambda: made.data
    made.get_data_parallel_world_size = lambda: DATA
    made.get_data_parallel_rank = lambda: RANK // TENSOR
    made.get_model_parallel_group = lambda: made.tensor
    made.get_model_parallel_world_size = lambda: TENSOR
    made.get_model_parallel_rank = lambda: RANK % TENSOR
    made.get_tensor_model_parallel_rank = made.get_model_parallel_rank
    return made


def summed(x: torch.Tensor, group: Any) -> torch.Tensor:
    x = x.clone()
    dist.all_reduce(x, group=group)
    return x


class Between(torch.autograd.Function):
    """Megatron's g, which sums the ranks' values, or its f, which sums their gradients."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Any, sums: bool) -> torch.Tensor:
        ctx.given = group, sums
        return summed(x, group) if sums else x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        group, sums = ctx.given
        return grad if sums else summed(grad, group), None, None


class Divided(nn.Module):
    def __init__(self, mpu: Any, seed: int = 0) -> None:
        super().__init__()
        self.mpu = mpu
        whole, rank = make(Whole, seed), mpu.get_model_parallel_rank()
        own = slice(rank * HIDDEN // TENSOR, (rank + 1) * HIDDEN // TENSOR)
        self.norm = whole.norm
        self.up = nn.Linear(WIDTH, HIDDEN // TENSOR)
        self.down = nn.Linear(HIDDEN // TENSOR, WIDTH, bias=False)
        self.bias = whole.down.bias
        with torch.no_grad():
            self.up.weight.copy_(whole.up.weight[own])
            self.up.bias.copy_(whole.up.bias[own])
            self.down.weight.copy_(whole.down.weight[:, own])
        self.up.weight.model_parallel = self.up.bias.tensor_model_parallel = True
        self.down.weight.model_parallel = True

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        group = self.mpu.tensor
        inner = F.gelu(self.up(Between.apply(self.norm(x), group, False)))
        return x + Between.apply(self.down(inner), group, True) + self.bias


Whole = functools.partial(Block, WIDTH, HIDDEN)
data_of = random_rows(500, ROWS, WIDTH)
whole_loss, own_loss = squared_errors(data_of)
train = trainer(own_loss, STEPS)


def train_alone() -> list[float]:
    return train_whole(make(Whole), whole_loss, STEPS)


def config(stage: int, **keys: Any) -> dict[str, Any]:
    return parts.config(ROWS // DATA, stage, train_batch_size=ROWS) | keys


def divided(mpu: Any, stage: int, seed: int = 0, **keys: Any) -> zerorun.ZeroEngine:
    model = Divided(mpu, seed)
    return initialize(model, adamw(model), config=config(stage, **keys), mpu=mpu)[0]


def case_a_tensor_parallel_mlp_trains_like_the_whole_one() -> None:
    mpu, expected = megatron(), train_alone()
    replicas = {"zerorun": {"comm_timeout": 30, "shard_group_size": 1}}
    for stage, keys in ((0, {}), (1, {}), (2, {}), (3, {}), (2, replicas)):
        engine = divided(mpu, stage, **keys)
        assert engine.communicator.world_size == DATA
        assert engine.batch.accumulation_steps == 1
        assert_close(train(engine), expected)


def pipeline() -> Any:
    mpu = megatron()
    mpu.get_tensor_model_parallel_rank = lambda: 0
    mpu.get_tensor_model_parallel_world_size = lambda: 1
    mpu.get_tensor_model_parallel_group = lambda: [RANK]
    return mpu


def case_parts_of_whole_tensors_take_every_optimizer() -> None:
    mpu = pipeline()
    kinds = [Whole, lambda: nn.Sequential(nn.Linear(WIDTH, 30), nn.Linear(30, WIDTH))]
    own, expected = mpu.get_model_parallel_rank(), []
    for optimizer in (LAMB, MUON):
        keys = {"optimizer": optimizer, "gradient_clipping": 0.0}
        for kind in kinds:
            everybody = keys | {"train_micro_batch_size_per_gpu": ROWS // WORLD_SIZE}
            expected.append(train(initialize(make(kind), config=config(2, **everybody))[0])[::2])
        for stage in (0, 1, 3):
            model = make(kinds[own])
            for parameter in model.parameters():
                parameter.tensor_model_parallel = True  # as Megatron's layers mark theirs always
            engine, *_ = initialize(model, config=config(stage, **keys), mpu=mpu)
            assert_close(train(engine)[::2], expected[own - 2])


def case_parts_with_other_parameters_step_together() -> None:
    """As the stages of a pipeline do: no parameter is a replica, and each is whole."""
    mpu = pipeline()
    kinds = [Whole, lambda: nn.Sequential(nn.Linear(WIDTH, 5), nn.Linear(5, WIDTH))]
    both = nn.ModuleList(make(kind) for kind in kinds)
    optimizer, expected = adamw(both), []
    for step in range(STEPS):
        x, y = data_of(step)
        losses = [F.mse_loss(model(x), y) for model in both]
        optimizer.zero_grad()
        sum(losses).backward()
        norm = torch.nn.utils.clip_grad_norm_(both.parameters(), CLIP)
        optimizer.step()
        expected += [losses[mpu.get_model_parallel_rank()].item(), norm.item()]
    for stage in (1, 3):
        model = make(kinds[mpu.get_model_parallel_rank()])
        engine, *_ = initialize(model, adamw(model), config=config(stage), mpu=mpu)
        assert_close(train(engine), expected)


def case_replicas_that_differ_are_told() -> None:
    mpu = megatron()
    own = mpu.get_model_parallel_rank()
    for apart in ("", "norm.weight", "up.weight"):
        model = Divided(mpu)
        if apart == "up.weight":
            del model.up.weight.model_parallel
        elif apart:
            model.norm.weight.data += own
        with logged() as lines:
            initialize(model, adamw(model), config=config(2), mpu=mpu)[0].destroy()
        told = [line for line in lines if "differ between tensor-parallel ranks" in line]
        assert len(told) == (1 if apart and own == 0 else 0)
        assert all(f"the first is {apart}" in line for line in told)


LAMB = {"type": "Lamb", "params": {"lr": 0.02, "weight_decay": 0.1}}
MUON = {"type": "Muon", "params": {"lr": 0.02, "weight_decay": 0.1}}


def case_lamb_has_the_norms_of_whole_tensors() -> None:
    mpu = megatron()
    everybody = {"train_micro_batch_size_per_gpu": ROWS // WORLD_SIZE, "optimizer": LAMB}
    expected = train(initialize(make(Whole), config=config(2, **everybody))[0])
    offloaded = {"stage": 2, "offload_optimizer": {"device": "cpu", "ratio": 0.5}}
    for stage, keys in ((0, {}), (1, {}), (2, {"zero_optimization": offloaded}), (3, {})):
        engine, *_ = initialize(Divided(mpu), config=config(stage, optimizer=LAMB) | keys, mpu=mpu)
        assert_close(train(engine), expected)
        for parameter in (engine.module.norm.weight, engine.module.bias):
            values = safe_get_full_fp32_param(parameter)
            gathered = [torch.empty_like(values) for _ in range(WORLD_SIZE)]
            dist.all_gather(gathered, values.contiguous())
            assert all(torch.equal(values, other) for other in gathered)


def case_a_checkpoint_has_a_folder_for_each_part(folder: Path) -> None:
    mpu = megatron()
    for stage, loads_at, blocking in ((1, 3, True), (3, 2, False)):
        path = folder / str(stage)
        engine = divided(mpu, stage)
        train(engine, 2)
        engine.save_checkpoint(path, client_state={"epoch": 3}, blocking=blocking)
        expected = train(engine, 2, first=2)
        engine.wait_for_checkpoint()
        engine._ranks.job.barrier()
        assert (path / "latest").read_text() == "global_step2\n"
        for rank in range(TENSOR):
            assert (path / "global_step2" / f"mp_rank_{rank:02d}" / "checkpoint.json").exists()
        engine = divided(mpu, loads_at, seed=7)
        assert engine.load_checkpoint(path) == (str(path / "global_step2"), {"epoch": 3})
        assert train(engine, 2, first=2) == expected
        refuses("parts", engine.save_16bit_model, folder)
    model = make(Whole)
    whole, *_ = initialize(model, adamw(model), config=config(1, train_batch_size=2 * ROWS))
    refuses_to_load(whole, path, "has the parts of 2")
    whole.save_checkpoint(folder / "whole")
    refuses_to_load(divided(mpu, 1), folder / "whole", "ranks that all had the whole model")


def case_a_save_over_a_tag_that_fails_leaves_the_one_before(folder: Path) -> None:
    engine = divided(megatron(), 1)
    train(engine, 1)
    engine.save_checkpoint(folder, "same", {"epoch": 1})
    train(engine, 1)
    bad = {"epoch": (lambda: 0) if RANK == WORLD_SIZE - 1 else 2}
    raises(zerorun.Error, "client_state", engine.save_checkpoint, folder, "same", bad)
    assert engine.load_checkpoint(folder) == (str(folder / "same"), {"epoch": 1})
    if RANK == 0:  # as after a kill between two parts
        (folder / "same").rename(folder / "same.previous")
        shutil.copytree(folder / "same.previous" / "mp_rank_00", folder / "same" / "mp_rank_00")
    engine._ranks.job.barrier()
    assert engine.load_checkpoint(folder) == (str(folder / "same.previous"), {"epoch": 1})
    engine.save_checkpoint(folder, "same", {"epoch": 3})
    engine._ranks.job.barrier()
    assert engine.load_checkpoint(folder) == (str(folder / "same"), {"epoch": 3})
    assert not (folder / "same.previous").exists()


def case_overflow_skips_the_step_on_all_ranks() -> None:
    fp16 = {"enabled": True, "initial_scale_power": 8, "hysteresis": 1}
    engine = divided(megatron(), 2, fp16=fp16)
    for step in range(3):
        x, y = (part.half().chunk(DATA)[RANK // TENSOR] for part in data_of(step))
        overflows = step == 1 and RANK == WORLD_SIZE - 1  # here only
        engine.backward(F.mse_loss(engine(x), y) * (1e30 if overflows else 1.0))
        engine.step()
    assert (engine.skipped_steps, engine._core.loss_scale) == (1, 128.0)


def case_zero_init_keeps_what_each_part_of_the_model_has() -> None:
    mpu, expected = megatron(), train_alone()
    own = mpu.get_model_parallel_rank()
    for group in ({"mpu": mpu}, {"data_parallel_group": mpu.data}):
        replica = 10 * own + RANK // TENSOR  # the values are those of the first one
        with Init(**group, zero_param_parallel_group=mpu.data):
            layer = make(lambda: nn.Linear(5, 7), replica)
        assert torch.equal(full(layer.weight), make(lambda: nn.Linear(5, 7), 10 * own).weight)
        model = Divided(mpu)
        Init(model, **group)
        assert model.up.weight.shape == (0,)
        engine, *_ = initialize(model, adamw(model), config=config(3), mpu=mpu)
        assert_close(train(engine), expected)
    with Init():
        model = nn.Linear(4, 4)
    text = "give zero.Init and initialize the same mpu"
    refuses(text, initialize, model, adamw(model), config=config(3), mpu=mpu)
    given = {"mpu": mpu, "zero_param_parallel_group": mpu.tensor}
    refuses("hold another part of the model", Init, **given)
    text = "zero.Init: zero_param_parallel_group: got 5, expected a process group"
    refuses(text, Init, zero_param_parallel_group=5)


def case_what_contradicts_itself_is_an_error() -> None:
    mpu = megatron()
    nameless, ungrouped = (types.SimpleNamespace(**vars(mpu)) for _ in range(2))
    del nameless.get_model_parallel_rank, nameless.get_tensor_model_parallel_rank
    del ungrouped.get_model_parallel_group
    wrong = [
        (group, types.SimpleNamespace(get_data_parallel_group=lambda found=group: found))
        for group in (5, "22", ["a"])
    ]
    plain = config(1)
    expected = "expected a process group"
    for text, settings, given in (
        ("give one of them", plain, {"mpu": mpu, "mesh_param": (4, 1)}),
        ("whose product is", plain, {"mesh_param": (3, 1)}),
        ("mesh_param: got {'dp': 4}", plain, {"mesh_param": {"dp": 4}}),
        *(("expected the sizes of", plain, {"mesh_param": sizes}) for sizes in ("22", (8, 0.5))),
        ("no get_data_parallel_group", plain, {"mpu": object()}),
        ("get_model_parallel_rank() and", plain, {"mpu": nameless}),
        *((f"_group(): got {group!r}, {expected}", plain, {"mpu": each}) for group, each in wrong),
        ("up.weight is divided among ranks", config(1, optimizer=MUON), {"mpu": mpu}),
        ("get_tensor_model_parallel_group()", config(1, optimizer=LAMB), {"mpu": ungrouped}),
    ):
        model = Divided(mpu)
        optimizer = None if "optimizer" in settings else adamw(model)
        refuses(text, initialize, model, optimizer, config=settings, **given)
