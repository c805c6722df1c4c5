"""The configuration's Muon against its formulas in float64: coefficients and heads."""

from transformers.pytorch_utils import Conv1D

from cases.models import *

LR, MOMENTUM, DECAY = 0.01, 0.95, 0.1
HEADS = {"blocks.0.up.weight": 4, "*.up.weight": 2}
OTHER = "blocks.1.down.weight"  # has use_muon = False


@functools.cache
def polar_express(steps: int) -> list[tuple[float, float, float]]:
    """Coefficients for singular values from 1e-3 to 1, as arXiv 2505.16932 finds them: each step's
    odd polynomial of degree 5 is the closest to 1 (Remez) on what the steps before have left."""
    found = []
    low, high = 1e-3, 1.0
    for _ in range(steps):
        least = max(low, 0.02407327424182761 * high)
        middle = [(3 * least + high) / 4, (least + 3 * high) / 4]
        for _ in range(30):
            points = torch.tensor([least, *middle, high], dtype=torch.float64)
            signs = torch.tensor([1.0, -1.0, 1.0, -1.0], dtype=torch.float64)
            columns = torch.stack([points, points**3, points**5, signs], dim=1)
            a, b, c, _ = torch.linalg.solve(columns, torch.ones_like(points)).tolist()
            root = math.sqrt(9 * b * b - 20 * a * c)
            middle = [math.sqrt((-3 * b + sign * root) / (10 * c)) for sign in (-1, 1)]
        ends = [a * x + b * x**3 + c * x**5 for x in (low, high)]
        a, b, c = (2 / sum(ends) * value for value in (a, b, c))
        low = a * low + b * low**3 + c * low**5
        high = 2 - low
        found.append((a / 1.01, b / 1.01**3, c / 1.01**5))
    return found


def orthogonalized(matrix: torch.Tensor, method: str) -> torch.Tensor:
    x = matrix.double()
    steps = [(3.4445, -4.7750, 2.0315)] * 5
    if method == "polar_express":
        steps, x = polar_express(5), x / 1.01
    x /= matrix.double().norm() + 1e-7
    for a, b, c in steps:
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    rows, columns = x.shape
    return x * math.sqrt(max(1, rows / columns))


class Muon(torch.optim.Optimizer):
    def __init__(self, model: nn.Module, method: str, heads: dict[str, int]) -> None:
        named = dict(model.named_parameters())
        self._matrices = {n: p for n, p in named.items() if n[:6] == "blocks" and p.ndim == 2}
        self._matrices.pop(OTHER)
        self._method, self._heads = method, heads
        rest = [p for n, p in named.items() if n not in self._matrices]
        options = {"betas": (0.9, 0.95), "eps": 1e-10, "weight_decay": DECAY}
        self._rest = torch.optim.AdamW(rest, lr=LR, **options)
        super().__init__(model.parameters(), {})

    def _heads_of(self, name: str) -> int:
        return self._heads.get(name, self._heads.get(f"*.{name.split('.', 2)[2]}", 1))

    @torch.no_grad()
    def step(self) -> None:
        self._rest.step()
        for name, matrix in self._matrices.items():
            state = self.state[matrix]
            momentum = state.setdefault("momentum", torch.zeros_like(matrix))
            momentum.lerp_(matrix.grad, 1 - MOMENTUM)
            direction = matrix.grad.lerp(momentum, MOMENTUM)
            parts = direction.chunk(self._heads_of(name))
            found = torch.cat([orthogonalized(part, self._method) for part in parts])
            matrix.mul_(1 - LR * DECAY).sub_(LR * found.float())


def block(method: str, heads: dict[str, int]) -> dict[str, object]:
    params = {"lr": LR, "weight_decay": DECAY, "ns_method": method, "muon_heads": heads}
    return {"type": "Muon", "params": params}


def case_coefficients_and_heads_follow_the_formulas_at_every_stage() -> None:
    found = []
    for method, heads in (("gram", {}), ("polar_express", {}), ("gram", HEADS)):
        expected, _ = reference(lambda model, how=(method, heads): Muon(model, *how))
        hashes = set()
        for stage in STAGES:
            settings = config(stage, optimizer=block(method, heads))
            model = make()
            model.get_parameter(OTHER).use_muon = False
            engine, *_ = initialize(model=model, config=settings)
            assert_close(train(engine), expected)
            hashes.add(engine._core.parameter_hash())
        assert len(hashes) == 1
        found.append(expected[-1])
    assert min(abs(a - b) for a in found for b in found if a != b) > 1e-3  # each is its own


class Filters(nn.Module):
    """Filters of a convolution, and matrices of experts in one parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 16, (3, 2), bias=False)
        self.experts = nn.Parameter(torch.randn(3, 16, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = self.conv(x).flatten(2).mT
        return torch.einsum("bri,eij->ebrj", rows, self.experts).square().mean()


def case_filters_are_one_matrix_and_experts_have_one_each() -> None:
    for stage in STAGES:
        model, plain = make(Filters), make(Filters)
        settings = config(stage, optimizer=block("gram", {}), gradient_clipping=0.0)
        engine, *_ = initialize(model=model, config=settings)
        images = torch.randn(4, 2, 5, 5, generator=torch.Generator().manual_seed(1))
        plain(images).backward()
        engine.backward(engine(images.to(DEVICE)))
        engine.step()
        for parameter in plain.parameters():
            blended = parameter.grad * (1 - MOMENTUM**2)  # of momentum and gradient, in step 1
            parts = blended if parameter.ndim == 3 else [blended.flatten(1)]
            found = torch.stack([orthogonalized(part, "gram") for part in parts])
            parameter.data.mul_(1 - LR * DECAY).sub_(LR * found.view(parameter.shape).float())
        assert_values(model, plain, atol=2e-4)


def case_settings_that_differ_among_ranks_are_an_error() -> None:
    for method, heads in (("polar_express", {}), ("gram", HEADS)) if WORLD_SIZE > 1 else ():
        own = block(method, heads) if RANK == 0 else block("gram", {})
        text = "ns_steps, ns_method or muon_heads differ between ranks"
        refuses(text, initialize, model=make(), config=config(2, optimizer=own))


def case_heads_that_fit_no_matrix_are_errors() -> None:
    for heads, text in (
        ({"*.up.weight": 7}, "rows, which optimizer.params.muon_heads divides into 7"),
        ({"embedding.weight": 2}, "'embedding.weight' matches no matrix that Muon updates"),
    ):
        settings = config(2, optimizer=block("gram", heads))
        refuses(text, initialize, model=make(), config=settings)
    columns = nn.Sequential(nn.Identity(), nn.Sequential(Conv1D(8, 4)))
    settings = config(2, optimizer=block("gram", {"*.weight": 2}))
    text = "muon_heads: got 2 heads of 1.0.weight, whose columns are the outputs"
    refuses(text, initialize, model=columns, config=settings)
