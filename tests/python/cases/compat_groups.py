"""deepspeed's mpu, mesh_param and mixture of experts, on 2 x 2 ranks."""

import deepspeed
from deepspeed.moe import utils as moe
from deepspeed.moe.layer import MoE
from deepspeed.moe.sharded_moe import TopKGate, _AllToAll, top1gating, top2gating, topkgating
from deepspeed.runtime.pipe import topology as grids
from deepspeed.sequence.layer import DistributedAttention, _SeqAllToAll, single_all_to_all
from deepspeed.utils import groups

from cases import dtensors, mesh
from cases.compat import begin
from cases.models import *
from cases.parts import random_rows, squared_errors, train_whole, trainer

WIDTH, EXPERTS, ROWS, STEPS = 8, 4, 16, 4
KEYS = {"gradient_clipping": 0.05, "zerorun": {"comm_timeout": 30}}


def adamw_keys(stage: int) -> dict[str, Any]:
    optimizer = {"type": "AdamW", "params": {"lr": 0.02, "weight_decay": 0.1}}
    return KEYS | {"optimizer": optimizer, "zero_optimization": {"stage": stage}}


def divided(mpu: Any) -> Any:
    config = adamw_keys(2) | {"train_batch_size": mesh.ROWS, "gradient_accumulation_steps": 1}
    model = mesh.Divided(mpu)
    return begin(model=model, model_parameters=model.parameters(), config=config, mpu=mpu)[0]


def case_a_grid_of_a_topology_is_an_mpu() -> None:
    deepspeed.init_distributed()
    topology = grids.PipeModelDataParallelTopology(num_pp=1, num_mp=2, num_dp=2)
    lists = [topology.get_axis_comm_lists(axis) for axis in ("model", "data", "pipe")]
    assert lists == [[[0, 1], [2, 3]], [[0, 2], [1, 3]], [[0], [1], [2], [3]]]
    assert topology.filter_match(data=1, model=0) == [2] == topology.get_axis_list("data", 1)[:1]
    assert topology.get_coord(3) == (0, 1, 1)
    assert topology.get_rank(pipe=0, data=1, model=1) == 3
    assert topology.get_rank_repr(3) == "model_01"
    assert topology.get_rank_repr(3, omit_axes=(), outer_sep="+") == "pipe_00+data_01+model_01"
    assert (topology.get_dim("data"), topology.get_dim("expert")) == (2, 0)
    raises(ValueError, "expected each of", topology.get_rank, data=1)
    small = grids.ProcessTopology(["pipe", "data"], [1, 2])
    raises(AssertionError, "Invalid Grid", grids.PipelineParallelGrid, small)
    grid = grids.PipelineParallelGrid(topology)
    rank_of = grids.PipelineParallelGrid.get_data_parallel_rank
    assert rank_of.__qualname__ == "PipelineParallelGrid.get_data_parallel_rank"
    assert (grid.get_data_parallel_rank(), grid.get_slice_parallel_rank()) == divmod(RANK, 2)
    assert grid.get_data_parallel_group_ranks() == [RANK % 2, RANK % 2 + 2]
    assert (grid.get_model_parallel_rank(), grid.get_model_parallel_world_size()) == (RANK % 2, 2)
    assert (grid.is_first_stage, grid.is_last_stage, grid.stage_to_global(0)) == (True, True, RANK)
    total = torch.tensor(RANK)
    dist.all_reduce(total, group=grid.get_slice_parallel_group())
    assert total == (1 if RANK < 2 else 5)
    grid.tensor = grid.get_slice_parallel_group()  # the name in this model
    engine = divided(grid)
    assert (engine.dp_world_size, engine.mp_world_size) == (2, 2)
    assert_close(mesh.train(engine), mesh.train_alone())


def case_stages_of_a_pipeline_are_an_axis() -> None:
    deepspeed.init_distributed()
    grid = grids.PipelineParallelGrid(grids.PipeDataParallelTopology(num_pp=2, num_dp=2))
    stage, column = divmod(RANK, 2)
    assert (grid.get_stage_id(), grid.get_data_parallel_id()) == (stage, column)
    assert [grid.stage_to_global(i) for i in range(2)] == [column, column + 2]
    assert grid.stage_to_global(1, data=0) == 2
    assert (grid.is_first_stage, grid.is_last_stage) == (stage == 0, stage == 1)
    assert grid.p2p_groups == [[0, 2], [1, 3], [2, 0], [3, 1]]
    assert dist.get_process_group_ranks(grid.get_pipe_parallel_group()) == [column, column + 2]
    assert (grid.get_slice_parallel_world_size(), grid.get_slice_parallel_rank()) == (1, 0)


def case_groups_answer_from_the_mpu() -> None:
    mpu = mesh.megatron()
    engine = divided(mpu)
    assert engine.train_micro_batch_size_per_gpu() == mesh.ROWS // mesh.DATA
    assert (engine.dp_world_size, engine.mp_world_size, engine.world_size) == (2, 2, 4)
    assert groups._get_data_parallel_group() is engine.data_parallel_group is mpu.data
    assert groups.get_data_parallel_world_size() == engine.seq_dp_world_size == 2
    assert groups._get_data_parallel_rank() == engine.get_data_parallel_rank() == RANK // 2
    sizes = {"data": 2, "model": 2, "tensor": 2, "sequence": 1}
    for kind, size in sizes.items():
        assert getattr(engine, f"get_{kind}_parallel_world_size")() == size
    assert groups.get_model_parallel_world_size() == 2
    assert groups.get_tensor_model_parallel_rank() == engine.get_model_parallel_rank() == RANK % 2
    assert groups.get_tensor_model_parallel_src_rank() == RANK // 2 * 2
    assert groups._get_broadcast_src_rank() == RANK % 2
    deepspeed.checkpointing.configure(mpu)
    deepspeed.checkpointing.model_parallel_cuda_manual_seed(7)
    with deepspeed.checkpointing.get_cuda_rng_tracker().fork():
        drawn = torch.rand(1)
    own = torch.Generator().manual_seed(7 + 2718 + RANK % 2)
    assert torch.equal(drawn, torch.rand(1, generator=own))
    plain, *_ = begin(model=nn.Linear(4, 4), config={"train_batch_size": WORLD_SIZE})
    assert plain.data_parallel_group is dist.group.WORLD
    assert engine.data_parallel_group is groups._get_data_parallel_group() is mpu.data
    assert (plain.mpu, plain.seq_dp_world_size) == (None, WORLD_SIZE)


def case_groups_answer_from_the_mesh() -> None:
    whole = dtensors.meshes()
    model = dtensors.divided(whole)
    given = {"model": model, "model_parameters": model.parameters(), "mesh_param": whole}
    engine, *_ = begin(config=adamw_keys(1) | {"train_micro_batch_size_per_gpu": 2}, **given)
    assert engine.train_batch_size() == 4
    assert groups._get_data_parallel_group() is whole.get_group("dp")
    assert groups.get_model_parallel_group() is whole.get_group("tp")
    assert groups.get_model_parallel_rank() == RANK % 2


class Mixture(nn.Module):
    def __init__(self, size: int, k: int) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.into = nn.Linear(WIDTH, WIDTH)
        expert = nn.Sequential(nn.Linear(WIDTH, 12), nn.GELU(), nn.Linear(12, WIDTH))
        options = {"drop_tokens": False, "use_rts": False, "top2_2nd_expert_sampling": False}
        self.moe = MoE(WIDTH, expert, EXPERTS, size, k, use_residual=True, **options)
        own = range(EXPERTS) if size == 1 else range(RANK % size * EXPERTS // size, EXPERTS)
        local = self.moe.deepspeed_moe.experts.deepspeed_experts
        for number, module in zip(own, local, strict=False):
            torch.manual_seed(100 + number)
            with torch.no_grad():
                for parameter in module.parameters():
                    parameter.normal_(std=0.3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.into(x)
        return x + self.moe(x)[0]


whole_loss, own_loss = squared_errors(random_rows(300, ROWS, WIDTH))


def case_a_moe_layer_trains_like_one_process() -> None:
    with_process_group()
    keys = {"train_micro_batch_size_per_gpu": ROWS // WORLD_SIZE}
    sent = torch.arange(WORLD_SIZE) + 10 * RANK
    received = _AllToAll.apply(dist.group.WORLD, sent)
    assert received.tolist() == [10 * rank + RANK for rank in range(WORLD_SIZE)]
    for k, stages in ((1, (0, 2)), (2, (1,)), (3, (3,))):
        expected = train_whole(Mixture(1, k), whole_loss, STEPS)
        for stage in stages:
            model = Mixture(2, k)
            assert moe.has_moe_layers(model) == (True, EXPERTS)
            everything = {"params": list(model.parameters()), "name": "all"}
            parameters = moe.split_params_into_different_moe_groups_for_optimizer(everything)
            assert [group.get("moe", False) for group in parameters] == [False, True]
            assert all(map(moe.is_moe_param, parameters[1]["params"]))
            given = {"model": model, "model_parameters": parameters}
            engine, *_ = begin(**given, config=adamw_keys(stage) | keys)
            assert engine.has_moe_layers
            assert groups._get_expert_parallel_world_size("ep_size_2") == 2
            replicas = groups._get_expert_data_parallel_group_ranks("ep_size_2")
            assert replicas == [RANK % 2, RANK % 2 + 2]
            assert_close(trainer(own_loss, STEPS)(engine), expected)
        whole_batch = adamw_keys(0) | {"train_batch_size": WORLD_SIZE}
        engine, *_ = begin(model=Mixture(2, k), config=whole_batch)
        uneven = torch.randn(2 + 5 * RANK, WIDTH)  # numbers of tokens
        torch.testing.assert_close(engine(uneven), Mixture(1, k)(uneven))


def case_gates_keep_to_the_capacity() -> None:
    torch.manual_seed(1)
    logits = torch.randn(40, 4)
    logits[:, 0] += 3  # almost all want the first
    for gate, k in (
        (lambda: top1gating(logits, 1.0, 2), 1),
        (lambda: top1gating(logits, 1.0, 2, use_rts=False, noisy_gate_policy="RSample"), 1),
        (lambda: top2gating(logits, 1.0, 2), 2),
        (lambda: topkgating(logits, 3, 1.0, 2), 3),
        (lambda: topkgating(logits, 3, 1.0, 2, drop_policy="position"), 3),
    ):
        loss, weights, mask, counts = gate()
        assert loss > 1  # what equal shares would give
        assert mask.shape == (40, 4, 10 * k)
        assert (mask.sum(0) <= 1).all()  # a place is one token's
        assert (mask.sum((1, 2)) <= k).all()
        assert counts.sum() == 40 * k
        assert counts[0] > 10
        assert mask.sum((0, 2))[0] == 10 if k == 1 else mask.sum((0, 2))[0] <= 10 * k
        assert weights.sum((1, 2)).max() <= 1 + 1e-6
    for policy in ("probs", "position"):  # more places than tokens
        _, _, mask, _ = topkgating(logits[:4], 3, 1.0, 8, drop_policy=policy)
        assert (mask.shape, mask.sum()) == ((4, 4, 8), 12)
    raises(ValueError, "drop_policy", topkgating, logits, 2, 1.0, 2, drop_policy="x")
    rest = (None, None, True, True, None, True)  # of DeepSpeed's arguments
    raises(NotImplementedError, "sparse_routes", top1gating, logits, 1.0, 2, *rest)
    gate = TopKGate(4, 4)
    gate.capacity_factor = 2.0
    assert gate(logits)[1].shape == (40, 4, 20)


def case_layers_that_cannot_be_are_errors() -> None:
    expert = nn.Linear(4, 4)
    raises(ValueError, "do not divide num_experts=3", MoE, 4, expert, 3, ep_size=2)
    raises(NotImplementedError, "use_tutel", MoE, 4, expert, 2, use_tutel=True)
    raises(NotImplementedError, "mp_size=2", groups._create_expert_and_data_parallel, 2, 2)
    raises(ValueError, "noisy_gate_policy", MoE, 4, expert, 2, noisy_gate_policy="no")
    layer = MoE(4, expert, 2, ep_size=2)
    raises(ValueError, "call deepspeed.initialize", layer, torch.zeros(3, 4))


def case_sizes_of_a_mesh_let_ranks_share_sequences() -> None:
    """From here on ranks share them: a job has one size."""
    given = {"model": nn.Linear(2, 2), "config": KEYS | {"train_micro_batch_size_per_gpu": 1}}
    raises(ValueError, "mesh_param: got (2, 1)", begin, **given, mesh_param=(2, 1))
    engine, *_ = begin(**given, mesh_param=(2, 2))
    assert groups._get_sequence_parallel_world_size() == 2
    assert engine.train_batch_size() == 2
    keys = {"train_batch_size": 2, "sequence_parallel_size": 2, "data_parallel_size": 2}
    engine, *_ = begin(model=nn.Linear(2, 2), config=adamw_keys(1) | keys)
    ranks = dist.get_process_group_ranks
    part, row = RANK % 2, RANK // 2
    assert ranks(engine.seq_parallel_group) == [2 * row, 2 * row + 1]
    assert ranks(engine.data_parallel_group) == [part, part + 2]
    assert (groups._get_data_parallel_world_size(), groups._get_data_parallel_rank()) == (2, row)
    assert ranks(engine.seq_data_parallel_group) == [0, 1, 2, 3]
    with groups.of_engine(None, None):  # not for the mesh of a case before
        assert groups._get_broadcast_src_rank() == 0  # of that group


def sdpa(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    parts = (tensor.transpose(1, 2) for tensor in (query, key, value))
    found = nn.functional.scaled_dot_product_attention(*parts, is_causal=True, enable_gqa=True)
    return found.transpose(1, 2)


def case_heads_that_ranks_do_not_divide_attend_like_one_rank() -> None:
    shared = groups._get_sequence_parallel_group()
    part = dist.get_rank(shared)
    torch.manual_seed(0)
    whole = [torch.randn(2, 8, heads, 4, requires_grad=True) for heads in (6, 3, 3)]
    expected = sdpa(*whole)
    weight = torch.randn_like(expected)
    (expected * weight).sum().backward()
    for tokens in (1, 0):  # the dimension, where the other one is the batch

        def laid_out(tensor: torch.Tensor, tokens: int = tokens) -> torch.Tensor:
            return tensor if tokens == 1 else tensor.transpose(0, 1)

        def core(*tensors: torch.Tensor, like: Any = laid_out) -> torch.Tensor:
            return like(sdpa(*map(like, tensors)))

        attend = DistributedAttention(core, shared, gather_idx=tokens, num_kv_heads=3)
        own = [laid_out(t.detach().chunk(2, 1)[part]).clone().requires_grad_() for t in whole]
        found = attend(*own)
        (found * laid_out(weight.chunk(2, 1)[part])).sum().backward()
        torch.testing.assert_close(laid_out(found), expected.chunk(2, 1)[part])
        for mine, tensor in zip(own, whole, strict=True):
            torch.testing.assert_close(laid_out(mine.grad), tensor.grad.chunk(2, 1)[part])
    tensor = torch.randn(4, 2, 3, 5)
    by_heads = _SeqAllToAll.apply(shared, tensor, 2, 0, 1)
    assert by_heads.shape == (8, 2, 2 - part, 5)
    assert torch.equal(_SeqAllToAll.apply(shared, by_heads, 0, 2, 1), tensor)
    tensor = torch.randn(2, 4, 1, 3)
    raises(AssertionError, "1 key-value heads", single_all_to_all, tensor, 2, 1, 0, shared)
    few = torch.randn(2, 3, 2, 3)
    refuses("3 tokens", single_all_to_all, few, 1, 2, 0, shared)
