"""What programs take of DeepSpeed's runtime for work of their own, and what its profile counts."""

from deepspeed.profiling.flops_profiler import FlopsProfiler, get_model_profile
from deepspeed.runtime import utils
from deepspeed.runtime.data_pipeline.curriculum_scheduler import CurriculumScheduler
from deepspeed.runtime.fp16.fused_optimizer import FP16_Optimizer
from deepspeed.runtime.fp16.loss_scaler import LossScaler
from deepspeed.runtime.fp16.unfused_optimizer import FP16_UnfusedOptimizer
from deepspeed.runtime.sparse_tensor import SparseTensor
from deepspeed.utils import bwc
from zerorun import experts

from cases.compat import *


def graded(*gradients: list[float]) -> list[nn.Parameter]:
    found = [nn.Parameter(torch.zeros(len(values))) for values in gradients]
    for parameter, values in zip(found, gradients, strict=True):
        parameter.grad = torch.tensor(values)
    return found


def slices() -> SimpleNamespace:
    """An mpu by which all ranks hold slices of one model."""
    return SimpleNamespace(
        get_model_parallel_rank=lambda: RANK,
        get_model_parallel_group=lambda: dist.group.WORLD,
        get_data_parallel_group=lambda: dist.group.WORLD,
    )


def case_norms_are_those_of_all_the_parts() -> None:
    deepspeed.init_distributed()
    shared, own = graded([3.0, -4.0], [2.0 + RANK])
    own.model_parallel = True
    for norm_type in (1, 2, 3, math.inf):
        whole = torch.tensor([3.0, -4.0, *(2.0 + rank for rank in range(WORLD_SIZE))])
        expected = torch.linalg.vector_norm(whole, norm_type).item()
        shared.data, own.data = shared.grad, own.grad
        tensors = [own.grad] if RANK else [shared.grad, own.grad]
        for found in (
            utils.get_weight_norm([shared, own], norm_type, slices()),
            utils.get_global_norm_of_tensors(tensors, norm_type, slices()).item(),
        ):
            assert math.isclose(found, expected, rel_tol=1e-6), (norm_type, found, expected)
    assert utils.get_weight_norm(graded([1.0])[0].data.fill_(math.inf)) == -1
    assert utils.get_global_norm([3.0, torch.tensor(4.0)]) == 5.0
    for invalid in (-1.0, math.nan, math.inf):
        assert utils.get_global_norm([3.0, invalid]) == math.inf
        assert utils.combine_grad_norm_groups([torch.tensor(3.0), invalid]).item() == math.inf
        assert utils.is_invalid_grad_norm(invalid)


def case_clipping_is_pytorchs_over_the_parts_of_a_model() -> None:
    deepspeed.init_distributed()
    for norm_type in (1.0, 2.0, 3.0, math.inf):
        ours, theirs = (graded([3.0, -4.0], [2.0]) for _ in range(2))
        norm = nn.utils.clip_grad_norm_(theirs, 1.0, norm_type)
        assert torch.allclose(utils.clip_grad_norm_(ours, 1.0, norm_type), norm)
        torch.testing.assert_close([p.grad for p in ours], [p.grad for p in theirs])
    parts = graded([1.0], [RANK + 1.0])
    parts[1].model_parallel = True
    whole = graded([1.0], [rank + 1.0 for rank in range(WORLD_SIZE)])
    expected = nn.utils.clip_grad_norm_(whole, 0.5)
    assert torch.allclose(utils.clip_grad_norm_(parts, 0.5, mpu=slices()), expected)
    assert torch.allclose(parts[1].grad, whole[1].grad[RANK])
    experts.start(WORLD_SIZE)
    ours = graded([1.0], [RANK + 1.0])
    ours[1].allreduce = False
    norms = [math.sqrt(1 + (rank + 1) ** 2) for rank in range(WORLD_SIZE)]
    assert math.isclose(utils.clip_grad_norm_(ours, 0.1), sum(norms) / WORLD_SIZE, rel_tol=1e-6)
    tensors = [torch.full((4,), 2.0)]
    assert utils.clip_tensors_by_global_norm(tensors, 1.0) == 4.0
    assert torch.allclose(tensors[0], torch.full((4,), 0.5))


def case_an_overflow_of_one_rank_is_one_of_all() -> None:
    deepspeed.init_distributed()
    experts.start(WORLD_SIZE)
    last = RANK == WORLD_SIZE - 1
    shared, expert = graded([1.0], [math.inf if last else 1.0])
    expert.allreduce = False
    check = utils.CheckOverflow([[shared, expert]])
    assert check.check()
    assert check.has_overflow_serial([shared, expert]) is last
    norm = utils.get_weight_norm([expert.grad])
    assert check.check_using_norm([norm], reduce_overflow=False)
    expert.grad.fill_(1.0)
    assert not check.check()
    assert not check.check_using_norm([1.0], reduce_overflow=False)
    sharded = utils.CheckOverflow([[shared]], zero_reduce_scatter=True)
    shared.grad.fill_(math.nan if RANK == 0 else 1.0)
    assert sharded.check()
    assert utils.CheckOverflow([[shared]], mpu=slices()).check()
    for values, expected in (([1.0, 2.0], False), ([1.0, -math.inf], True), ([math.nan], True)):
        assert bool(utils.has_inf_or_nan(torch.tensor(values))) is expected
    assert not utils.has_inf_or_nan(torch.empty(0))
    masked = torch.tensor([math.nan, math.inf, 2.0])
    utils.mask_nan_or_inf_with_val_inplace(masked, val=1.5)
    assert masked.tolist() == [1.5, 1.5, 2.0]


def case_parts_of_a_tensor_become_whole() -> None:
    deepspeed.init_distributed()
    group = dist.group.WORLD
    for size in (1, 7, 8):
        tensor = torch.arange(float(size * 3)).view(size, 3)
        part = utils.PartitionedTensor(tensor, group)
        assert part.local_size().numel() in {size * 3 // WORLD_SIZE, size * 3 // WORLD_SIZE + 1}
        assert torch.equal(part.full(), tensor)
        again = utils.PartitionedTensor.from_meta(part.to_meta(), part.data(), group, "cpu")
        assert torch.equal(again.full(), tensor)
        assert again.full_size() == [size, 3]


def case_a_hook_counts_the_parameters_that_a_backward_reaches() -> None:
    seen = []
    used, unused = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1))
    product = used * 2
    count = utils.count_used_parameters_in_backward
    product.register_hook(lambda _: seen.append(count([used, unused])))
    product.sum().backward()
    assert seen == [1]
    raises(RuntimeError, "within", count, [used])


def case_an_mpu_is_asked_by_any_of_its_names() -> None:
    asked = (
        bwc.bwc_tensor_model_parallel_rank,
        bwc.bwc_tensor_model_parallel_world_size,
        bwc.bwc_tensor_model_parallel_group,
        bwc.bwc_pipeline_parallel_world_size,
    )

    def mpu(kind: str, **answers: object) -> SimpleNamespace:
        made = {f"get_{kind}_{what}": lambda v=v: v for what, v in answers.items()}
        return SimpleNamespace(**made)

    for kind in ("tensor_model_parallel", "slice_parallel", "model_parallel"):
        given = mpu(kind, rank=3, world_size=8, group="ranks")
        assert [ask(given) for ask in asked] == [3, 8, "ranks", 1]
    for other in (None, mpu("sequence_parallel", rank=1)):
        assert [ask(other) for ask in asked] == [0, 1, None, 1]
    stages = mpu("pipe_parallel", world_size=2, group="stages")
    assert bwc.bwc_pipeline_parallel_world_size(stages) == 2
    assert bwc.bwc_pipeline_parallel_group(stages) == "stages"
    raises(AssertionError, "pipeline", lambda: bwc.bwc_pipeline_parallel_group(slices()))


def case_files_that_name_a_loss_scaler_are_read(folder: Path) -> None:
    """Its class is a placeholder, which torch.load takes; a subclass says what it says."""
    kept = LossScaler.__new__(LossScaler)
    kept.cur_scale = 8.0
    torch.save({"scaler": kept}, folder / f"{RANK}.pt")
    with torch.serialization.safe_globals([LossScaler]):
        assert torch.load(folder / f"{RANK}.pt")["scaler"].cur_scale == 8.0
    for scaler in (LossScaler, type("MyScaler", (LossScaler,), {})):
        raises(NotImplementedError, "fp16.enabled", scaler, 8.0)


def case_curricula_rise_in_their_steps() -> None:
    def curriculum(kind: str, **settings: object) -> CurriculumScheduler:
        given = {"min_difficulty": 8, "max_difficulty": 1000, "schedule_type": kind}
        return CurriculumScheduler(given | {"schedule_config": settings})

    for kind, degree in (("fixed_linear", 1), ("fixed_root", 2)):
        made = curriculum(kind, total_curriculum_step=100, difficulty_step=16, root_degree=degree)
        for step in (0, 1, 30, 99, 100, 500):
            reached = 8 + (step / 100) ** (1 / degree) * 992
            expected = min(max(int(reached) // 16 * 16, 16), 1000)
            assert made.get_difficulty(step) == expected, (kind, step)
        assert made.update_difficulty(30) == made.state["current_difficulty"]
        assert made.update_difficulty(1000) == made.update_difficulty(1) == 1000
    steps = curriculum("fixed_discrete", difficulty=[1, 2, 3], max_step=[5, 10])
    assert [steps.get_difficulty(s) for s in (0, 5, 6, 10, 11)] == [1, 1, 2, 2, 3]
    own = curriculum("custom")
    raises(RuntimeError, "set_custom", own.get_difficulty, 1)
    own.set_custom_get_difficulty(lambda step: step * 2)
    assert own.get_difficulty(21) == 42
    raises(AssertionError, "max_difficulty", CurriculumScheduler, {"min_difficulty": 1})
    raises(RuntimeError, "fixed_lin", curriculum, "no")
    text = "one difficulty more"
    raises(AssertionError, text, curriculum, "fixed_discrete", difficulty=[1], max_step=[2])


def case_sparse_gradients_keep_their_rows() -> None:
    layer = nn.Embedding(5, 3, sparse=True)
    layer(torch.tensor([4, 1, 1])).sum().backward()
    one = SparseTensor(layer.weight.grad)
    assert one.indices.tolist() == [1, 4]
    assert one.sparse_size() == (8, 15)
    one.add(SparseTensor(layer.weight.grad))
    assert torch.equal(one.to_coo_tensor().to_dense(), 2 * layer.weight.grad.to_dense())
    raises(AssertionError, "dense", SparseTensor, torch.ones(2))


def case_optimizers_of_stage_0_in_16_bits_have_their_classes() -> None:
    half = {"fp16": {"enabled": True, "loss_scale": 8}}
    model, settings = make(), config(0, bf16={"enabled": True})
    given = begin(model=model, optimizer=adamw(model), config=settings)[1]
    for optimizer, fused, unfused in (
        (start(0, **half)[1], True, False),
        (start(1, **half)[1], False, False),
        (given, False, True),
        (adamw(model), False, False),
        (start(0)[1], False, False),
    ):
        assert isinstance(optimizer, FP16_Optimizer) is fused
        assert isinstance(optimizer, FP16_UnfusedOptimizer) is unfused
    assert start(1, **half)[1].low_precision_dtype == torch.float16


def case_unknown_keys_are_ignored_where_deepspeed_reads_by_name() -> None:
    with logged("DeepSpeed") as lines:
        start(1, flops_profiler={"enabled": False, "step": 1}, aio={"block_siz": 1})
    assert any("flops_profiler.step" in line and "aio.block_siz" in line for line in lines), lines
    refuses("/fp16/loss_scal", start, 1, fp16={"loss_scal": 1})


def case_the_engine_has_the_profile_that_was_asked_for(folder: Path) -> None:
    asked = {"enabled": True, "profile_step": 1, "output_file": str(folder / f"{RANK}.txt")}
    engine, *_ = start(1, flops_profiler=asked)
    train(engine, 3)
    if RANK == 0:
        assert engine.flops_profiler.flops == engine.flops_profiler.get_total_flops() > 0
        assert engine.flops_profiler.params == sum(p.numel() for p in make().parameters())
    engine, *_ = start(1)
    assert not hasattr(engine, "flops_profiler")


def flops_of(module: torch.nn.Module, *inputs: torch.Tensor) -> tuple[int, int]:
    profiler = FlopsProfiler(module)
    profiler.start_profile()
    module(*inputs)
    profiler.stop_profile()
    found = profiler.get_total_flops(), profiler.get_total_macs()
    profiler.end_profile()
    assert not module._forward_hooks
    return found


class Calls(torch.nn.Module):
    def __init__(self, call: Callable[..., object]) -> None:
        super().__init__()
        self.call = call

    def forward(self, *inputs: torch.Tensor) -> object:
        return self.call(*inputs)


def case_flops_are_those_of_the_formulas(folder: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    macs = 3 * (8 * 16 + 16 * 4)
    path = folder / "new" / "profile.txt"
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
    attend = Calls(lambda x: heads(x, x, x, need_weights=False))
    macs = 3 * 5 * 8 * 8 * 4 + 2 * 3 * 5 * 5 * 8  # projections, scores and their sums
    for is_training in (True, False):
        heads.train(is_training)
        with torch.no_grad():
            assert flops_of(attend, torch.randn(3, 5, 8)) == (2 * macs, macs)


def case_a_profile_leaves_nothing_behind() -> None:
    def fail(x: torch.Tensor) -> None:
        raise RuntimeError(str(x.shape))

    functional = torch.nn.functional
    watched = (functional.linear, torch.bmm, torch.Tensor.__matmul__, torch.Tensor.mul)
    model = torch.nn.Sequential(torch.nn.Linear(4, 2, bias=False), Calls(fail))
    raises(RuntimeError, "[1, 2]", get_model_profile, model, (1, 4), warm_up=0)
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in model.modules())
    model[1] = torch.nn.Identity()
    assert get_model_profile(model, (1, 4), print_profile=False, as_string=False) == (16, 8, 8)
    now = (functional.linear, torch.bmm, torch.Tensor.__matmul__, torch.Tensor.mul)
    assert now == watched
