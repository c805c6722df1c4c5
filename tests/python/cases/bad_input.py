"""What users get wrong: typed errors that name module, parameter and argument, on every rank."""

from cases.models import *


def start(model: nn.Module, optimizer: object = None, **options: object):
    return initialize(model, optimizer, **{"config": config(2)} | options)


def case_models_and_optimizers_that_cannot_be_trained() -> None:
    with torch.device("meta"):
        unset = Model()
    model, wide = make(), make()
    wide.blocks[0].double()
    weight = model.blocks[0].up.weight
    groups = [{"params": [weight]}, {"params": [weight], "lr": 1.0}]
    own = {"optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}}
    for text, refused, optimizer, options in (
        ("parameter embedding.weight is on the meta device", unset, None, {}),
        ("parameter 0 of optimizer group 0, of shape (50, 32), is not a", model, adamw(make()), {}),
        ("blocks.0.up.weight, is in two groups", model, Groups, {"model_parameters": groups}),
        ("expected a torch.nn.Module", [1, 2], None, {}),
        ("not a torch optimizer", model, lambda _params: 3, {}),
        ("torch.float64", wide, adamw(wide), {}),
        ("/optimizer: the program brings one", model, adamw(model), {"config": config(1, **own)}),
        ("config: got", model, None, {"config": 3}),
    ):
        refuses(text, start, refused, optimizer, **options)


class Groups(torch.optim.Optimizer):
    def __init__(self, groups: list[dict[str, object]]) -> None:
        self.defaults, self.state, self.param_groups = {"lr": 1.0}, {}, groups


def case_what_an_engine_is_not_given() -> None:
    model, engine = started(config(2))
    logits = engine(part_of(batch_of(0)))
    for wrong in (logits, 1.0):
        refuses("expected a loss, a scalar tensor", engine.backward, wrong)
    train(engine, 1)
    safe = zerorun.zero
    for kind in ("full", "local"):
        setter, getter = (getattr(safe, f"safe_{w}_{kind}_optimizer_state") for w in ("set", "get"))
        value = getter(model.head.weight, "exp_avg")
        message = "exp_avg of embedding.weight: got float, expected a tensor"  # it is tied
        refuses(message, setter, model.head.weight, 0.5 if RANK == 0 else value, "exp_avg")
    more = {"params": [nn.Parameter(torch.ones(1))]}
    refuses("make all groups before", engine.optimizer.add_param_group, more)
    model, engine = started(config(1))
    model.extra = nn.Linear(2, 2)
    refuses("extra.weight joined the model", train, engine, 1)


def case_a_sparse_gradient() -> None:
    model = make()
    model.embedding = nn.Embedding(50, 32, sparse=True)
    engine, *_ = start(model, torch.optim.SGD(model.parameters(), lr=0.1))
    loss = loss_of(engine, part_of(batch_of(0)))
    text = "gradient of embedding.weight: got a tensor of layout torch.sparse_coo"
    refuses(text, engine.backward, loss)


def case_a_backward_that_fails_leaves_a_usable_engine() -> None:
    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(_ctx, x):
            return x.clone()

        @staticmethod
        def backward(_ctx, _grad):
            raise KeyError("in backward")

    model, _ = started(config(3))
    for inside in (False, True):  # of the block
        hidden = model.embedding(part_of(batch_of(0)))
        if inside:
            model.blocks[0].norm.register_forward_hook(lambda *given: Fails.apply(given[-1]))
        else:
            hidden = Fails.apply(hidden)
        raises(KeyError, "in backward", lambda: model.blocks[0](hidden).sum().backward())

    def forward_fails() -> None:
        model.blocks[0](torch.ones(1, 33))

    raises(RuntimeError, "normalized_shape", forward_fails)
    with torch.no_grad():
        model(part_of(batch_of(0)))
    assert all(p.shape == torch.Size([0]) for p in model.parameters())


def case_a_16_bit_model_keeps_its_dtype() -> None:
    model = make().bfloat16()
    engine, *_ = start(model, adamw(model))
    assert engine._core.param_dtype == "bf16"  # with fp32 masters
    expected, _ = reference()
    assert_close(train(engine), expected, 0.05)


def case_a_rank_that_fails_ends_the_others() -> None:
    """Comes last: this communicator is of no use afterwards."""
    _, engine = started(config(2))
    if RANK == 1:
        engine.communicator.abort("forward of blocks.1 failed: ValueError")
    elif WORLD_SIZE > 1:
        raises(zerorun.CommError, "forward of blocks.1 failed", train, engine, 1)


def case_an_engine_ends_after_its_ranks_have_failed() -> None:
    model, engine = started(config(3))
    weight = model.blocks[0].up.weight
    engine.communicator.barrier()  # all have made theirs
    engine.communicator.abort("forward of blocks.1 failed: ValueError")
    raises(zerorun.CommError, "forward of blocks.1 failed", train, engine, 1)
    engine.destroy()
    assert weight.ds_tensor.numel() == 128 * 32 // WORLD_SIZE


def case_a_model_that_has_an_engine() -> None:
    model, engine = started(config(1))
    refuses("belongs to an engine already", zerorun.ShardedOptimizer, adamw(model))
    engine.destroy()
    refuses("destroyed", engine.step)
    start(model, adamw(model))


def case_a_module_of_torch_jit_takes_no_hooks() -> None:
    for stage, overlap in ((3, False), (2, True), (2, False)):
        model = make()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch.jit is deprecated
            model.blocks[1].norm = torch.jit.script(model.blocks[1].norm)
        settings = config(stage, zerorun={"overlap_param_gather": overlap})
        if stage == 3 or overlap:
            text = "module blocks.1.norm was made by torch.jit"
            refuses(text, start, model, adamw(model), config=settings)
            assert not any(m._forward_pre_hooks for m in model.modules())
        else:
            train(start(model, adamw(model), config=settings)[0], 1)


def case_values_that_are_replaced_by_others_of_another_kind() -> None:
    for stage, values in itertools.product(range(4), (torch.ones(32).bfloat16(), torch.ones(33))):
        model, engine = started(config(stage, {"stage3_param_persistence_threshold": 100}))
        model.blocks[1].norm.weight.data = values
        text = "parameter blocks.1.norm.weight: its .data was replaced after initialize: got "
        refuses(text, engine.step)


AdamW = functools.partial(torch.optim.AdamW, lr=1e-2)


def case_contradictions_are_value_errors() -> None:
    model = make()

    def refused(text: str, **keywords: object) -> None:
        raises(ValueError, text, shard, model, **keywords)

    refused('shard: stage: got "3", expected an integer from 0 to 3; remove', stage="3")
    refused("shard: stage: got None, expected a number", stage=None)
    refused("shard: clip: got -1, expected a number of at least 0", clip=-1.0)
    refused("shard: accumulation_steps: got 0, expected an integer", accumulation_steps=0)
    refused("shard: timeout: got 0, expected a number above 0", timeout=0.0)
    refused(f"shard_group_size: got {WORLD_SIZE + 1} for", shard_group_size=WORLD_SIZE + 1)
    refused('"cpu" needs stage 1, 2 or 3, got 0', stage=0, offload_optimizer="cpu")
    refused('shard: offload_params: "cpu" needs stage 3', stage=2, offload_params="cpu")
    for metrics in (3, ""):
        refused(f"shard: metrics: got {metrics!r}, expected the path of a file", metrics=metrics)
    refused("shard: offload_params: got <class 'bool'>, expected \"cpu\" or", offload_params=True)
    text = 'offload_optimizer no/such: No such file or directory; expected "cpu" or a folder'
    refused(text, optimizer=AdamW, offload_optimizer="no/such")
    refused("units: got no choice", units=[])
    refused("shard: init: got <class 'int'>, expected a function of a module", init=5)
    refused("shard: weights: got <class 'list'>, expected a mapping", weights=[1])
    refused("dtype=torch.int8", dtype=torch.int8)
    refused("reduce_dtype=torch.float64", reduce_dtype=torch.float64)
    refused("units: 'Blok' is met by no module", units="Blok")
    refused("units: <class 'torch.nn.modules.conv.Conv2d'> is met by no", units=[nn.Conv2d])
    for units in (5, [5]):
        refused("units: got 5, expected a class of modules", units=units)
    refused("optimizer: got <class 'list'>, expected a torch optimizer", optimizer=[])
    refused("init and weights are for a model on the meta device", weights={})
    raises(ValueError, "expected a torch.nn.Module", shard, "model")
    kind = nn.parallel.DistributedDataParallel
    ddp = kind.__new__(kind)  # which needs no process group
    nn.Module.__init__(ddp)
    raises(ValueError, "is, or has, a DistributedDataParallel", shard, nn.Sequential(ddp))
    message = "call model.float() before"
    raises(ValueError, message, lambda: shard(make().half(), dtype=torch.float32))
    engine = shard(model, optimizer=AdamW)  # the errors left the model alone
    raises(OSError, "/dev/null", engine.save_checkpoint, "/dev/null/checkpoints")


def case_inner_parts_of_an_engine_warn_unless_the_model_has_them() -> None:
    model = make()
    engine = shard(model, optimizer=adamw(model))
    with pytest.warns(DeprecationWarning, match="engine.core is an inner part"):
        assert engine.core is engine._core
    model.policy = "of the program"
    assert engine.policy == "of the program"
