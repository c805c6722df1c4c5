"""What a profile counts, against formulas and the figures of DeepSpeed's."""

from deepspeed.profiling.flops_profiler import FlopsProfiler, get_model_profile

from cases.models import *


def flops_of(module: torch.nn.Module, *inputs: torch.Tensor) -> tuple[int, int]:
    """Floating point operations and multiply-adds of a call."""
    profiler = FlopsProfiler(module)
    profiler.start_profile()
    module(*inputs)
    profiler.stop_profile()
    found = profiler.get_total_flops(), profiler.get_total_macs()
    profiler.end_profile()
    assert not module._forward_hooks
    return found


class Calls(torch.nn.Module):
    """A function as a module, looked up when it is called."""

    def __init__(self, call: Callable[..., object]) -> None:
        super().__init__()
        self.call = call

    def forward(self, *inputs: torch.Tensor) -> object:
        return self.call(*inputs)


def case_flops_are_those_of_the_formulas(folder: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    macs = 3 * (8 * 16 + 16 * 4)
    path = folder / "profile.txt"
    found = get_model_profile(model, (3, 8), as_string=False, output_file=str(path))
    assert found == (2 * macs + 3 * 16, macs, 8 * 16 + 16 + 16 * 4 + 4)
    assert "(2): Linear = 68, 32.08% Params, 192 MACs, 33.33% MACs" in path.read_text()
    printed = get_model_profile(model, (3, 8), print_profile=False)
    assert printed == ("1.2 K", "576 MACs", "212")
    x, shared = torch.randn(2, 4, 8, 8), torch.nn.Linear(8, 8, bias=False)
    size = x.numel()
    for module, flops in {  # of DeepSpeed 0.19.8
        torch.nn.Conv2d(4, 8, 3, padding=1, groups=2): 2 * 2 * 64 * 8 * 2 * 9 + 2 * 64 * 8,
        torch.nn.ConvTranspose2d(4, 8, 3, groups=4): 2 * size * 2 * 9 + 2 * 8 * 100,
        torch.nn.BatchNorm2d(4): 5 * size,
        torch.nn.BatchNorm2d(4).eval(): 2 * size,
        torch.nn.LayerNorm(8): 5 * size,
        torch.nn.GroupNorm(2, 4, affine=False): 4 * size,
        torch.nn.InstanceNorm2d(4): 4 * size,
        torch.nn.MaxPool2d(2): size,
        torch.nn.AdaptiveAvgPool2d(1): size,
        torch.nn.Upsample(scale_factor=2): 4 * size,
        torch.nn.Softmax(dim=-1): size,
        torch.nn.Dropout(): 0,
        torch.nn.Sequential(torch.nn.Sequential(shared), shared): 4 * size * 8,
        Calls(lambda x: x @ torch.ones(8)): 2 * size,
        Calls(lambda x: torch.mul(torch.ones(8), x).add(1) * 2): 2 * size,
        Calls(lambda x: torch.einsum("abcd,dc->ab", x, torch.ones(8, 8))): 2 * size,
        Calls(lambda x: torch.addmm(torch.ones(1), x[0, 0], x[0, 0])): 2 * 512 + 64,
        Calls(lambda x: x[0, 0].addmm(mat1=x[0, 0], mat2=x[0, 0])): 2 * 512 + 64,
        Calls(lambda x: torch.nn.functional.layer_norm(x, normalized_shape=(8,))): 4 * size,
        Calls(lambda x: torch.nn.functional.group_norm(x, 2, eps=1e-6)): 4 * size,
        Calls(lambda x: torch.nn.functional.instance_norm(x, eps=1e-6)): 4 * size,
    }.items():
        assert flops_of(module, x)[0] == flops, module
    sequence = torch.randn(5, 2, 4)
    for module, flops in {
        torch.nn.RNN(4, 6): 1260,
        torch.nn.LSTM(4, 6, num_layers=2, bidirectional=True): 29280,
        torch.nn.GRU(4, 6, bias=False): 3660,
    }.items():
        assert flops_of(module, sequence)[0] == flops, module
    heads = torch.nn.MultiheadAttention(8, 2, batch_first=True)
    x = torch.randn(3, 5, 8)
    attention = 2 * (3 * 5 * 8 * 8 * 4 + 2 * 3 * 5 * 5 * 8)  # projections, scores and their sums
    for module in (heads, heads.eval()):
        with torch.no_grad():
            assert flops_of(Calls(lambda x, m=module: m(x, x, x, need_weights=False)), x) == (
                attention,
                attention // 2,
            )


def case_a_profile_leaves_nothing_behind() -> None:
    def fail(x: torch.Tensor) -> None:
        raise RuntimeError(str(x.shape))

    functional = torch.nn.functional
    watched = (functional.linear, torch.bmm, torch.Tensor.__matmul__, torch.Tensor.mul)
    model = torch.nn.Sequential(torch.nn.Linear(4, 2, bias=False), Calls(fail))
    with pytest.raises(RuntimeError, match=r"\[1, 2\]"):
        get_model_profile(model, (1, 4), warm_up=0)
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in model.modules())
    model[1] = torch.nn.Identity()
    assert get_model_profile(model, (1, 4), print_profile=False, as_string=False) == (16, 8, 8)
    now = (functional.linear, torch.bmm, torch.Tensor.__matmul__, torch.Tensor.mul)
    assert now == watched
