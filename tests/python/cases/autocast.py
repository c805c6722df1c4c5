"""torch.autocast around models whose parameters come and go."""

from cases.models import *


def case_autocast_leaves_no_weights_between_forward_and_backward() -> None:
    class Opening(nn.Module):
        """Opens autocast itself, from its second forward on."""

        def __init__(self) -> None:
            super().__init__()
            self.up, self.calls = nn.Linear(64, 64), 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            with torch.autocast(DEVICE.type, torch.bfloat16, enabled=self.calls > 1):
                return self.up(x).float()

    def four(kind: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
        return lambda: nn.Sequential(*(kind() for _ in range(4)))

    def held(model: nn.Module, call: Callable[[torch.Tensor], torch.Tensor]) -> int:
        saved: list[torch.UntypedStorage] = []

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            saved.extend([tensor.untyped_storage()] if tensor.shape[0] == 64 else [])
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            loss = call(torch.ones(2, 64, device=DEVICE)).square().mean()
        kept = sum({each.data_ptr(): each.nbytes() for each in saved}.values())
        loss.backward()
        assert all(p.numel() == 0 for p in model.parameters())
        return kept

    for keys in (AUTOCAST, {}):
        model, engine = started(config(3, **keys), four(lambda: nn.Linear(64, 64)))
        autocast = torch.autocast(DEVICE.type, torch.bfloat16)
        assert held(model, autocast(engine.__call__)) == 0
        engine.step()
    model, engine = started(config(3), four(Opening))
    for autocast in (False, True, True):
        kept = held(model, engine)  # without autocast these are views of the unit's memory
        assert kept == 0 or not autocast
        engine.step()


def case_hooks_and_compiled_models_see_parameters_under_autocast() -> None:
    """A copy is for the product alone: pre-hooks compute weights, compiled code casts itself."""

    def normed() -> nn.Module:
        model = Model()
        torch.nn.utils.weight_norm(model.blocks[0].up)
        torch.nn.utils.spectral_norm(model.blocks[1].up)
        return model

    def compiled() -> nn.Module:
        torch._dynamo.reset()
        model = Model()
        model.compile(backend="aot_eager")
        return model

    for kind in (normed, compiled):
        found = []
        for stage in (1, 3):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of the compiler itself, and of weight_norm's age
                _, engine = started(config(stage, **AUTOCAST), kind)
                losses = train(engine, 2)
            found.append((losses, engine.get_global_grad_norm(), engine._core.parameter_hash()))
        assert found[0] == found[1]
