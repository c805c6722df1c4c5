"""DeepSpeed's optimizers without an engine, against torch's and formulas."""

from deepspeed.ops.adagrad import DeepSpeedCPUAdagrad
from deepspeed.ops.adam import DeepSpeedCPUAdam, FusedAdam
from deepspeed.ops.lamb import FusedLamb
from deepspeed.ops.lion import DeepSpeedCPULion

from cases.models import *


def case_cpu_adam_alone_keeps_fp32_states() -> None:
    calls = []
    for dtype in (torch.float32, torch.bfloat16):
        for amsgrad in (False, True):
            for mode in (False, True):
                values = torch.linspace(-1, 1, 8, dtype=dtype)
                ours, plain = torch.nn.Parameter(values.clone()), torch.nn.Parameter(values.float())
                own = DeepSpeedCPUAdam(
                    [ours], weight_decay=0.1, adamw_mode=mode, amsgrad=amsgrad, lr=1e-2
                )
                own.register_step_post_hook(lambda *_: calls.append(1))
                kind = torch.optim.AdamW if mode else torch.optim.Adam
                theirs = kind([plain], weight_decay=0.1, amsgrad=amsgrad, lr=1e-2)
                for step in range(3):
                    ours.grad = torch.full((8,), 0.5 - step, dtype=dtype)
                    plain.grad = ours.grad.float()
                    own.step()
                    theirs.step()
                    plain.data = plain.data.to(dtype).float()
                torch.testing.assert_close(ours.float(), plain)
                states = own.state[ours]
                assert states.pop("step") == 3
                assert {state.dtype for state in states.values()} == {torch.float32}
                torch.testing.assert_close(states["exp_avg_sq"], theirs.state[plain]["exp_avg_sq"])
    assert len(calls) == 3 * 8
    half = torch.nn.Parameter(torch.ones(2, dtype=torch.bfloat16))
    tiny = torch.nn.Parameter(torch.ones(4, dtype=torch.half))  # eps and squares are 0 in fp16
    tiny.grad = torch.full_like(tiny, 1e-6)
    FusedAdam([tiny], lr=0.5).step()
    assert_close(tiny.tolist(), [0.5] * 4, tolerance=2e-2)
    narrow = DeepSpeedCPUAdam([half], fp32_optimizer_states=False)
    half.grad = torch.ones_like(half)
    narrow.step()
    assert narrow.state[half]["exp_avg"].dtype == torch.bfloat16
    whole = torch.nn.Parameter(torch.ones(2))
    whole.grad = torch.full_like(whole, 0.5)
    FusedAdam([whole], lr=0.25, bias_correction=False).step()
    change = 0.25 * 0.05 / math.sqrt(0.001 * 0.25)
    assert_close(whole.tolist(), [1 - change] * 2)


def case_lion_lamb_and_adagrad_step_alone() -> None:
    turned = torch.randn(6, 5).t()  # not contiguous
    value = torch.nn.Parameter(turned.clone())
    lion = DeepSpeedCPULion([value], lr=1e-2, betas=(0.9, 0.99), weight_decay=0.1)
    expected, mean = turned.clone(), torch.zeros_like(turned)
    for _ in range(3):
        value.grad = torch.randn(5, 6)
        lion.step()
        expected.mul_(1 - 1e-3).sub_(1e-2 * torch.sign(mean * 0.9 + value.grad * 0.1))
        mean.mul_(0.99).add_(value.grad, alpha=0.01)
    torch.testing.assert_close(value.data, expected)
    torch.testing.assert_close(lion.state[value]["exp_avg"], mean)
    assert lion.state[value]["step"] == 3
    start = torch.randn(40)
    value, plain = torch.nn.Parameter(start.clone()), torch.nn.Parameter(start.clone())
    adagrad, torchs = DeepSpeedCPUAdagrad([value]), torch.optim.Adagrad([plain])
    for _ in range(3):
        indices = torch.randperm(40)[:4].sort().values[None]
        value.grad = torch.sparse_coo_tensor(
            indices, torch.randn(4), (40,), check_invariants=True
        ).coalesce()
        plain.grad = value.grad.to_dense()
        adagrad.step()
        torchs.step()
    torch.testing.assert_close(value, plain)
    torch.testing.assert_close(adagrad.state[value]["exp_avg_sq"], torchs.state[plain]["sum"])
    value = torch.nn.Parameter(start.clone())
    lamb = FusedLamb([value], lr=1e-2, eps=1e-6, weight_decay=0.1, eps_inside_sqrt=True)
    assert lamb.get_lamb_coeffs() == []
    value.grad = torch.randn(40)
    lamb.step()
    direction = 0.1 * value.grad / (0.001 * value.grad.square() + 1e-6).sqrt() + 0.1 * start
    ratio = (start.norm() / direction.norm()).clamp(0.01, 10).item()
    rate = 1e-2 * math.sqrt(0.001) / 0.1
    torch.testing.assert_close(value.data, start - rate * ratio * direction)
    assert_close(lamb.get_lamb_coeffs(), [ratio])
    value.data.zero_()  # without a norm there is no ratio
    copy.deepcopy(lamb).step()
    lamb.step()
    assert lamb.get_lamb_coeffs() == [1.0]
