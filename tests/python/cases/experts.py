"""Experts on different ranks (2 x 2), against one process that has them all."""

from zerorun import consolidate, experts

from cases import models
from cases.compat_groups import EXPERTS, ROWS, WIDTH, Mixture
from cases.models import *
from cases.parts import adamw, config, random_rows, squared_errors, train_whole, trainer

STEPS = 6


def mixture(size: int = 2) -> nn.Module:
    """Each token goes to the best of its experts, which that many ranks hold together."""
    with_process_group()
    model = Mixture(size, k=1)
    model.moe.set_deepspeed_parallelism()
    return model


def experts_of(model: nn.Module) -> nn.ModuleList:
    return model.moe.deepspeed_moe.experts.deepspeed_experts


whole_loss, own_loss = squared_errors(random_rows(700, ROWS, WIDTH))
train = trainer(own_loss, STEPS)


def start(stage: int, size: int = 2, **keys: Any) -> zerorun.ZeroEngine:
    model = mixture(size)
    zero = {"stage": stage, "stage3_param_persistence_threshold": 100, "reduce_bucket_size": 800}
    keys = {"zero_optimization": zero} | keys
    return initialize(model, adamw(model), config=config(ROWS // WORLD_SIZE, stage, **keys))[0]


def case_experts_on_different_ranks_train_like_those_of_one() -> None:
    whole = Mixture(1, k=1)
    expected = train_whole(whole, whole_loss, STEPS)
    private = {"zerorun": {"comm_timeout": 30, "share_parameters": False}}
    half = {"offload_optimizer": {"device": "cpu", "ratio": 0.5}, "reduce_bucket_size": 800}
    offloaded = {"zero_optimization": {"stage": 2} | half}
    of_two = [(0, {}), (1, {}), (2, {}), (3, {}), (3, private), (2, offloaded)]
    for size, runs in ((2, of_two), (4, [(2, {}), (3, {})]), (1, [(2, {})])):
        for stage, keys in runs:
            engine = start(stage, size, **keys)
            assert engine.batch.train_batch_size == ROWS
            assert_close(train(engine), expected)
            for index in range(EXPERTS // size):
                number = RANK % size * (EXPERTS // size) + index
                assert_values(experts_of(engine.module)[index], experts_of(whole)[number])


def case_optimizers_that_look_at_whole_tensors_know_of_experts(folder: Path) -> None:
    for kind in ("Lamb", "Muon"):
        optimizer = {"type": kind, "params": {"lr": 0.02, "weight_decay": 0.1}}
        expected, path = None, folder / kind
        for size, stage in ((1, 2), (2, 0), (2, 2), (4, 1), (2, 3)):
            model = mixture(size)
            keys = {"optimizer": optimizer, "gradient_clipping": 0.0}
            keys["zero_optimization"] = {"stage": stage, "reduce_bucket_size": 800}
            engine, *_ = initialize(model, config=config(ROWS // WORLD_SIZE, stage, **keys))
            found = train(engine)
            expected = expected or found
            assert_close(found, expected)
            if stage == 2:
                engine.save_checkpoint(path)
            else:
                engine.load_checkpoint(path)
                assert engine.global_steps == STEPS


def case_a_checkpoint_goes_to_another_number_of_ranks(folder: Path) -> None:
    engine = start(2, 2)
    train(engine, 2)
    engine.save_checkpoint(folder)
    expected = train(engine, 3, first=2)
    refuses("experts are on different", engine.full_state_dict)
    found, whole = (
        {name: value.shape for name, value in state.items()}
        for state in (consolidate.fp32_state_dict(folder), Mixture(1, k=1).state_dict())
    )
    assert found == whole
    for stage, size in ((3, 2), (1, 4), (2, 1)):
        engine = start(stage, size)
        engine.load_checkpoint(folder)
        assert_close(train(engine, 3, first=2), expected, 1e-6)


def case_a_torch_optimizer_and_accumulation_know_of_experts(folder: Path) -> None:
    def both(model: nn.Module, step: int) -> torch.Tensor:
        return (whole_loss(model, 2 * step) + whole_loss(model, 2 * step + 1)) / 2

    expected, _ = reference(sgd, lambda: Mixture(1, k=1), 4, math.inf, both)
    keys = {"gradient_accumulation_steps": 2, "gradient_clipping": 0.0}
    for stage in (1, 3):
        settings = config(ROWS // WORLD_SIZE, stage, **keys)
        _, engine = started(settings, mixture, optimizer=sgd)
        found = models.train(engine, 8, loss_at=own_loss)
        losses = [(one + two) / 2 for one, two in zip(found[::2], found[1::2], strict=True)]
        assert_close(losses, expected)
        engine.save_checkpoint(folder / str(stage))
        assert engine.load_checkpoint(folder / str(stage))[0] is not None


def case_what_cannot_be_is_an_error() -> None:
    model = mixture()
    for parameter in experts_of(model).parameters():
        parameter.group_name = "ep_size_3"
    plain = {"train_micro_batch_size_per_gpu": 1, "zerorun": {"comm_timeout": 30}}
    refuses("no such group, only: ep_size_2", initialize, model, adamw(model), config=plain)
    uneven = mixture()
    if RANK == 1:
        last = [p for p in uneven.parameters() if experts.is_expert(p)][-1]
        del last.allreduce
    text = "and missing on rank 1: expected as many experts on each rank"
    refuses(text, initialize, uneven, adamw(uneven), config=plain)
    refuses("do not divide the job's 4", experts.start, 3)
    sharded = {"zero_optimization": {"stage": 2}}
    text = "not for a model with expert parallelism"
    refuses(text, start, 2, zerorun={"comm_timeout": 30, "shard_group_size": 2}, **sharded)
    with Init():
        model = mixture()
    refuses("without zero.Init", initialize, model, adamw(model), config=plain | sharded)
