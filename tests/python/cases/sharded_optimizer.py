"""The sharded optimizer in loops that are not zerorun's, against torch alone."""

from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_pre_hook

from cases.models import *


class Looped:
    def __init__(self, make_optimizer, wrap: bool, seed: int = 0) -> None:
        self.model = make(seed=seed)
        self.clips = wrap  # gradients are averaged before the step
        self.inner = DistributedDataParallel(self.model) if wrap else self.model
        self.optimizer = zerorun.ShardedOptimizer(make_optimizer(self.model))
        self.scaler = torch.amp.GradScaler("cpu", init_scale=4.0, enabled=wrap)

    def consolidated(self) -> dict[str, Any]:
        self.optimizer.consolidate_state_dict()
        states = [self.optimizer.state_dict() if RANK == 0 else None]
        dist.broadcast_object_list(states)
        return states[0]

    def train(self, steps: int, first: int = 0) -> list[float]:
        losses = []
        for step in range(first, first + steps):
            self.optimizer.zero_grad()
            loss = loss_of(self.inner, part_of(batch_of(step)))
            self.scaler.scale(loss).backward()
            self.scaler.unscale_(self.optimizer)
            if self.clips:
                torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.scaler.step(self.optimizer)
            self.scaler.update()
            losses.append(mean(loss, self.optimizer.shards))
        return losses


def case_a_sharded_optimizer_in_a_ddp_script() -> None:
    with_process_group()
    slow = functools.partial(torch.optim.SGD, lr=2e-3, momentum=0.9)
    for make_optimizer in (adamw, lambda model: slow(model.parameters())):
        clipped, _ = reference(make_optimizer)
        free, _ = reference(make_optimizer, clip=float("inf"))
        for wrap, expected in ((True, clipped), (False, free)):
            looped = Looped(make_optimizer, wrap)
            losses = looped.train(8)
            if wrap:
                refuses("consolidate_state_dict", looped.optimizer.state_dict)
            states = looped.consolidated()
            weights = {name: value.clone() for name, value in looped.model.state_dict().items()}
            again = Looped(make_optimizer, wrap, seed=5)
            again.model.load_state_dict(weights)
            again.optimizer.load_state_dict(states)
            assert_close(losses + again.train(STEPS - 8, first=8), expected)
            # torch's own optimizer goes on with the states, and the other way round.
            plain = make(seed=5)
            plain.load_state_dict(weights)
            basic = make_optimizer(plain)
            basic.load_state_dict(states)
            assert basic.state_dict()["state"].keys() == states["state"].keys()


def sharded(parameters: object) -> zerorun.ShardedOptimizer:
    return zerorun.ShardedOptimizer(torch.optim.AdamW(parameters, lr=1e-2))


def case_hooks_of_all_optimizers_find_the_gradients_once() -> None:
    found: list[bool] = []

    def look(optimizer: torch.optim.Optimizer, *_: object) -> None:
        found.append(optimizer.param_groups[0]["params"][0].grad is not None)

    handle = register_optimizer_step_pre_hook(look)
    for make_optimizer in (adamw, sgd):
        model = make()
        own = zerorun.ShardedOptimizer(make_optimizer(model))
        loss_of(model, part_of(batch_of(0))).backward()
        own.step()
        assert found == [True]
        found.clear()
    handle.remove()


def case_names_may_differ_in_a_dot_only() -> None:
    with_process_group()
    both = torch.nn.ParameterDict({"a_weight": torch.ones(3), "training": torch.ones(2)})
    both["a"] = torch.nn.ParameterDict({"weight": torch.full((3,), 5.0)})
    own = sharded(both.named_parameters())
    for parameter in both.parameters():
        parameter.grad = torch.ones_like(parameter)
    own.step()
    assert both["a"]["weight"][0] > 4.9
    assert all(parameter[0] < 1 for name, parameter in both.items() if name != "a")


def case_states_that_do_not_fit_change_nothing() -> None:
    with_process_group()
    looped = Looped(adamw, wrap=True)
    looped.train(2)
    own, saved = looped.optimizer, looped.consolidated()
    before = saved["state"]
    first = before[0]

    def with_first(**changes: object) -> dict[str, object]:
        """The states, with one that does not fit on the last rank only."""
        kept = {key: value for key, value in {**first, **changes}.items() if value is not None}
        wrong = before | {0: kept}
        return saved | {"state": wrong if RANK == WORLD_SIZE - 1 else before}

    groups = [{**group, "params": [0]} for group in saved["param_groups"]]
    for wrong, text in (
        (with_first(exp_avg=torch.ones(7)), "exp_avg of parameter 0"),
        (with_first(exp_avg=first["exp_avg"].T.contiguous()), "got shape"),
        (with_first(exp_avg=None), "got states ['exp_avg_sq']"),
        (saved | {"param_groups": groups}, "got groups of [1] parameters"),
    ):
        raises(zerorun.CheckpointError, text, own.load_state_dict, wrong)
    after = looped.consolidated()["state"][0]
    assert torch.equal(after["exp_avg"], first["exp_avg"])
    assert after["step"] == 2
    own.load_state_dict(saved)


def case_a_deleted_one_leaves_a_model_that_others_can_take() -> None:
    model = make()
    before = [parameter.detach().clone() for parameter in model.parameters()]
    for _ in range(2):
        optimizer = sharded(model.parameters())
        refuses("belongs to an engine", sharded, model.parameters())
        del optimizer
        gc.collect()
    for parameter, values in zip(model.parameters(), before, strict=True):
        assert torch.equal(parameter, values)
    zerorun.initialize(model, adamw(model), config=config(1))
    gc.collect()
    loss_of(model, batch_of(0)).backward()
    optimizer = sharded(model.parameters())
    optimizer.step()
