"""What programs take of DeepSpeed's runtime for work of their own, against plain PyTorch."""

import math
from pathlib import Path
from types import SimpleNamespace

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.runtime import utils
from deepspeed.runtime.data_pipeline.curriculum_scheduler import CurriculumScheduler
from deepspeed.runtime.fp16.fused_optimizer import FP16_Optimizer
from deepspeed.runtime.fp16.loss_scaler import LossScaler
from deepspeed.runtime.fp16.unfused_optimizer import FP16_UnfusedOptimizer
from deepspeed.runtime.sparse_tensor import SparseTensor
from deepspeed.utils import bwc
from torch import nn
from zerorun import experts

from cases.compat import begin, start
from cases.models import RANK, WORLD_SIZE, adamw, config, make, raises, refuses


def graded(*gradients: list[float]) -> list[nn.Parameter]:
    """Parameters that have these gradients."""
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
        parts = [2.0 + rank for rank in range(WORLD_SIZE)]
        whole = torch.tensor([3.0, -4.0, *parts])
        expected = torch.linalg.vector_norm(whole, norm_type).item()
        shared.data, own.data = shared.grad, own.grad
        for found in (
            utils.get_weight_norm([shared, own], norm_type, slices()),
            utils.get_global_norm_of_tensors(
                [own.grad] if RANK else [shared.grad, own.grad], norm_type, slices()
            ).item(),
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
        for one, other in zip(ours, theirs, strict=True):
            assert torch.allclose(one.grad, other.grad)
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
    product.register_hook(
        lambda _: seen.append(utils.count_used_parameters_in_backward([used, unused]))
    )
    product.sum().backward()
    assert seen == [1]
    raises(RuntimeError, "within", utils.count_used_parameters_in_backward, [used])


def case_an_mpu_is_asked_by_any_of_its_names() -> None:
    for kind in ("tensor_model_parallel", "slice_parallel", "model_parallel"):
        answers = {"rank": 3, "world_size": 8, "group": "ranks"}
        mpu = SimpleNamespace(
            **{f"get_{kind}_{what}": lambda v=v: v for what, v in answers.items()}
        )
        assert bwc.bwc_tensor_model_parallel_rank(mpu) == 3
        assert bwc.bwc_tensor_model_parallel_world_size(mpu) == 8
        assert bwc.bwc_tensor_model_parallel_group(mpu) == "ranks"
    for other in (None, SimpleNamespace(get_sequence_parallel_rank=lambda: 1)):
        assert bwc.bwc_tensor_model_parallel_rank(other) == 0
        assert bwc.bwc_tensor_model_parallel_world_size(other) == 1
        assert bwc.bwc_tensor_model_parallel_group(other) is None
        assert bwc.bwc_pipeline_parallel_world_size(other) == 1
    stages = SimpleNamespace(
        get_pipe_parallel_world_size=lambda: 2, get_pipe_parallel_group=lambda: "stages"
    )
    assert bwc.bwc_pipeline_parallel_world_size(stages) == 2
    assert bwc.bwc_pipeline_parallel_group(stages) == "stages"
    raises(AssertionError, "pipeline", lambda: bwc.bwc_pipeline_parallel_group(slices()))


def case_files_that_name_a_loss_scaler_are_read(folder: Path) -> None:
    """Its class is a placeholder, which torch.load takes; a subclass says what it says."""
    kept = LossScaler.__new__(LossScaler)
    kept.cur_scale = 8.0
    folder.mkdir(parents=True, exist_ok=True)
    torch.save({"scaler": kept}, folder / f"{RANK}.pt")
    with torch.serialization.safe_globals([LossScaler]):
        assert torch.load(folder / f"{RANK}.pt")["scaler"].cur_scale == 8.0
    for scaler in (LossScaler, type("MyScaler", (LossScaler,), {})):
        raises(NotImplementedError, "fp16.enabled", scaler, 8.0)


def case_curricula_rise_in_their_steps() -> None:
    base = {"min_difficulty": 8, "max_difficulty": 1000}
    ramp = {"total_curriculum_step": 100, "difficulty_step": 16}
    for kind, degree in (("fixed_linear", 1), ("fixed_root", 2)):
        made = CurriculumScheduler(
            {**base, "schedule_type": kind, "schedule_config": ramp | {"root_degree": degree}}
        )
        for step in (0, 1, 30, 99, 100, 500):
            reached = 8 + (step / 100) ** (1 / degree) * 992
            expected = min(max(int(reached) // 16 * 16, 16), 1000)
            assert made.get_difficulty(step) == expected, (kind, step)
        assert made.update_difficulty(30) == made.state["current_difficulty"]
        assert made.update_difficulty(1000) == made.update_difficulty(1) == 1000
    lists = {"difficulty": [1, 2, 3], "max_step": [5, 10]}
    steps = CurriculumScheduler(
        {**base, "schedule_type": "fixed_discrete", "schedule_config": lists}
    )
    assert [steps.get_difficulty(s) for s in (0, 5, 6, 10, 11)] == [1, 1, 2, 2, 3]
    own = CurriculumScheduler({**base, "schedule_type": "custom"})
    raises(RuntimeError, "set_custom", own.get_difficulty, 1)
    own.set_custom_get_difficulty(lambda step: step * 2)
    assert own.get_difficulty(21) == 42
    raises(AssertionError, "max_difficulty", CurriculumScheduler, {"min_difficulty": 1})
    raises(RuntimeError, "fixed_lin", CurriculumScheduler, {**base, "schedule_type": "no"})
    lists = {"difficulty": [1], "max_step": [2]}
    wrong = {**base, "schedule_type": "fixed_discrete", "schedule_config": lists}
    raises(AssertionError, "one difficulty more", CurriculumScheduler, wrong)


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
    for stage in (0, 1):
        _, optimizer, *_ = start(stage, **half)
        assert isinstance(optimizer, FP16_Optimizer) is (stage == 0)
        assert not isinstance(optimizer, FP16_UnfusedOptimizer)
        assert optimizer.low_precision_dtype == torch.float16
    model = make()
    settings = config(0, bf16={"enabled": True})
    _, optimizer, *_ = begin(model=model, optimizer=adamw(model), config=settings)
    assert isinstance(optimizer, FP16_UnfusedOptimizer)
    assert not isinstance(optimizer, FP16_Optimizer)
    assert not isinstance(adamw(model), FP16_UnfusedOptimizer)
    _, optimizer, *_ = start(0)
    assert not isinstance(optimizer, FP16_Optimizer | FP16_UnfusedOptimizer)


def case_unknown_keys_are_ignored_where_deepspeed_reads_by_name() -> None:
    lines: list[str] = []
    logger = deepspeed.utils.logger
    logger.addFilter(lambda record: lines.append(record.getMessage()) is None)
    engine, *_ = start(1, flops_profiler={"enabled": False, "step": 1}, aio={"block_siz": 1})
    logger.filters.clear()
    assert any("flops_profiler.step" in line and "aio.block_siz" in line for line in lines), lines
    engine.destroy()
    refuses("/fp16/loss_scal", start, 1, fp16={"loss_scal": 1})


def case_the_engine_has_the_profile_that_was_asked_for(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    asked = {"enabled": True, "profile_step": 1, "output_file": str(folder / f"{RANK}.txt")}
    engine, *_ = start(1, flops_profiler=asked)
    tokens = torch.zeros(1, 4, dtype=torch.long)
    for _ in range(3):
        engine.backward(engine(tokens).float().sum())
        engine.step()
    if RANK == 0:
        assert engine.flops_profiler.flops == engine.flops_profiler.get_total_flops() > 0
        assert engine.flops_profiler.params == sum(p.numel() for p in make().parameters())
    engine, *_ = start(1)
    assert not hasattr(engine, "flops_profiler")
