"""What DeepSpeed's public classes and methods do, against plain PyTorch."""

from cases.compat import *


def case_several_backward_passes_are_one_step() -> None:
    def both(model: torch.nn.Module, step: int) -> torch.Tensor:
        return whole_loss(model, step) + whole_loss(model, step + 1)

    expected, _ = reference(steps=3, loss_at=both)
    for stage, managed in itertools.product(range(4), (True, False)):
        engine, *_ = start(stage, managed_gradient_accumulation=managed)
        assert engine.managed_gradient_accumulation() is managed
        losses = []
        for step in range(3):
            with engine.coalesce_grad_reduction() if managed else contextlib.nullcontext():
                loss = backward(engine, step) + backward(engine, step + 1)
                if managed:
                    raises(zerorun.Error, "no_sync", engine.step)
                    raises(AssertionError, "nested", engine.coalesce_grad_reduction)
            engine.step()
            assert engine.was_step_applied()
            assert engine.global_steps == step + 1
            assert engine.global_samples == engine.micro_steps * engine.train_batch_size()
            losses.append(mean(loss, engine))
        assert_close(losses, expected)
        if not managed:
            assert engine.micro_steps == 6
            raises(AssertionError, "step()", engine.coalesce_grad_reduction)
            raises(AssertionError, "step()", engine.set_gradient_accumulation_boundary, True)


def case_schedules_have_deepspeeds_classes_and_attributes() -> None:
    schedules = deepspeed.runtime.lr_schedules
    params = {"warmup_max_lr": 0.01, "warmup_num_steps": 4, "total_num_steps": 10}
    engine, optimizer, _, scheduler = start(
        1, scheduler={"type": "WarmupDecayLR", "params": {**params, "warmup_type": "linear"}}
    )
    assert type(scheduler) is schedules.WarmupDecayLR
    assert isinstance(scheduler, schedules.WarmupLR)
    assert (scheduler.min_lrs, scheduler.max_lrs) == ([0.0], [0.01])
    assert (scheduler.warmup_num_steps, scheduler.total_num_steps) == (4, 10)
    assert schedules.get_torch_optimizer(optimizer) is optimizer
    assert scheduler.get_last_lr() == engine.get_lr() == [0]  # before the first step
    assert scheduler.state_dict() == {"last_batch_iteration": -1}
    train(engine, 2)
    assert engine.get_lr() == scheduler.get_last_lr() == [0.01 * 1 / 4]
    raises(AttributeError, "step_size", lambda: scheduler.step_size)


def case_schedules_take_deepspeeds_arguments_and_tell_their_shape() -> None:
    schedules = deepspeed.runtime.lr_schedules

    def groups(*rates: float) -> torch.optim.Optimizer:
        made = [{"params": [torch.nn.Parameter(torch.zeros(1))], "lr": rate} for rate in rates]
        return torch.optim.AdamW(made)

    warmup = schedules.WarmupLR(groups(0.5, 0.25), warmup_num_steps=4)
    assert (warmup.max_lrs, warmup.get_last_lr()) == ([0.5, 0.25], [0, 0])
    warmup.step(4)
    assert warmup.get_lr() == [0.5, 0.25]
    decay = schedules.WarmupDecayLR(groups(0.5), total_num_steps=9, warmup_num_steps=3)
    assert decay.max_lrs == [0.001]
    cosine = schedules.WarmupCosineLR(groups(0.5), 10, 0.0, 4)
    assert (cosine.get_lr_ratio(), cosine.get_last_lr()) == (0.0, [0])
    cosine.step(8)
    assert abs(cosine.get_lr_ratio() - cosine.get_last_lr()[0] / 0.5) < 1e-12
    raises(ValueError, "warmup_num_steps", lambda: schedules.WarmupLR(groups(1), 0, 1, None))
    given = (0.0, 0.1, 10, "linear")
    whole = schedules.WarmupLR(groups(0.3), *given)
    for _ in range(6):
        whole.step()
    resumed = schedules.WarmupLR(groups(0.3), *given, 5)
    for _ in range(6):
        assert resumed.optimizer.param_groups[0]["lr"] == whole.get_last_lr()[0] < 0.3
        assert resumed.last_batch_iteration == whole.last_batch_iteration
        whole.step()
        resumed.step()
    raises(TypeError, "at most 5", schedules.WarmupLR, groups(0.3), *given, 5, 6)
    text = "multiple values"
    raises(TypeError, text, schedules.WarmupLR, groups(0.3), 0.0, warmup_min_lr=0.0)


def case_cycles_take_deepspeeds_arguments_and_tell_their_shape() -> None:
    cycles = deepspeed.runtime.lr_schedules.OneCycle
    cycle = cycles(adamw(make()), 0.01, 0.1, 0.0, 4, cycle_min_mom=0.8, cycle_max_mom=0.9)
    assert (cycle.min_lrs, cycle.max_lrs) == ([0.01], [0.1])
    assert (cycle.second_step_size, cycle.total_size, cycle.step_ratio) == (4, 8, 0.5)
    assert (cycle.skip_lr_decay, cycle.skip_mom_decay) == (True, True)
    assert cycle.get_mom() == [(0.9, 0.99)]
    assert cycle.optimizer.param_groups[0]["betas"] == (0.8, 0.99)
    for iteration in range(4):
        cycle.step(batch_iteration=iteration)
    assert cycle.get_mom()[0][0] == cycle.optimizer.param_groups[0]["betas"][0]
    assert abs(cycle.get_last_lr()[0] - 0.1) < 1e-9  # the top, after cycle_first_step_size
    steps = {"cycle_first_step_size": 3, "cycle_second_step_size": 1, "cycle_first_stair_count": 2}
    steps |= {"decay_step_size": 5, "decay_lr_rate": 0.1, "cycle_momentum": False}
    decaying = cycles(adamw(make()), 0.1, 0.2, **steps)
    assert (decaying.total_size, decaying.step_ratio, decaying.second_stair_count) == (4, 0.75, 2)
    assert (decaying.skip_lr_decay, decaying.skip_mom_decay) == (False, True)
    assert decaying.get_mom() is None


def case_fused_optimizers_take_arguments_by_place() -> None:
    ops = deepspeed.ops
    adam = functools.partial(torch.optim.AdamW, lr=1e-2, betas=(0.8, 0.99), eps=1e-6)
    expected, _ = reference(lambda m: adam(m.parameters(), weight_decay=0.1), steps=3)
    for make_optimizer in (
        lambda m: ops.adam.FusedAdam(m.parameters(), 1e-2, True, (0.8, 0.99), 1e-6, True, 0.1),
        lambda m: ops.adam.DeepSpeedCPUAdam(
            m.parameters(), 1e-2, True, (0.8, 0.99), 1e-6, 0.1, False, True, False
        ),
    ):
        model = make()
        engine, *_ = begin(model=model, optimizer=make_optimizer(model), config=config(2))
        assert_close(train(engine, 3), expected)
    for kind, own, params in (
        (ops.adam.FusedAdam, "AdamW", {"bias_correction": False}),
        (ops.lion.FusedLion, "Lion", {}),
        (ops.lion.DeepSpeedCPULion, "Lion", {}),
        (ops.adagrad.DeepSpeedCPUAdagrad, "Adagrad", {}),
        (ops.lamb.FusedLamb, "Lamb", {"max_coeff": 0.5, "bias_correction": False}),
    ):
        by_type = {"type": own, "params": {"lr": 1e-2, **params}}
        engine, *_ = begin(model=make(), config=config(2, optimizer=by_type))
        expected = train(engine, 3)
        model = make()
        optimizer = kind(model.parameters(), lr=1e-2, **params)
        engine, *_ = begin(model=model, optimizer=optimizer, config=config(2))
        assert_close(train(engine, 3), expected, 1e-6)  # PyTorch's arithmetic beside ours
    raises(NotImplementedError, "get_lamb_coeffs", optimizer.get_lamb_coeffs)
    raises(RuntimeError, "amsgrad", lambda: ops.adam.FusedAdam(make().parameters(), amsgrad=True))


def case_which_adam_the_configuration_made() -> None:
    """The name AdamW stands for decoupled decay, whatever adam_w_mode says."""
    fused = deepspeed.ops.adam.FusedAdam
    for name, mode in itertools.product(("Adam", "AdamW"), (True, False)):
        params = {"lr": 1e-3, "adam_w_mode": mode}
        _, optimizer, *_ = start(2, optimizer={"type": name, "params": params})
        for each in (optimizer, optimizer.optimizer):
            assert isinstance(each, fused)
            assert each.adam_w_mode is (mode or name == "AdamW")
        assert not isinstance(optimizer.optimizer, torch.optim.Adam)
    for mode, kind in ((True, torch.optim.AdamW), (False, torch.optim.Adam)):
        params = {"lr": 1e-3, "torch_adam": True, "adam_w_mode": mode}
        _, optimizer, *_ = start(2, optimizer={"type": "Adam", "params": params})
        assert isinstance(optimizer.optimizer, kind)
        assert isinstance(optimizer.optimizer, torch.optim.AdamW) is mode
    assert not isinstance(sgd(make()), fused)


def case_loaders_of_routes_and_samplers() -> None:
    engine, *_ = start(1, dataloader_drop_last=True)
    data = torch.arange(18)
    assert len(engine.deepspeed_io(data, 2)) == 18 // WORLD_SIZE // 2  # shuffled
    ordered = engine.deepspeed_io(data, 3, route="eval", num_local_io_workers=0)
    assert torch.equal(torch.cat(list(ordered)), torch.arange(RANK, 18, WORLD_SIZE))
    own = torch.utils.data.SequentialSampler(data)
    mine = engine.deepspeed_io(data, 4, data_sampler=own, collate_fn=lambda rows: sum(rows).item())
    assert next(mine) == 0 + 1 + 2 + 3
    assert list(mine) == [6, 22, 38, 54]  # the last two rows are dropped
    mine.load_state_dict(mine.state_dict() | {"samples": 4 * WORLD_SIZE})
    assert next(mine) == 4 + 5 + 6 + 7
    assert isinstance(mine, deepspeed.runtime.dataloader.DataLoader)
    given = {"config": config(0), "training_data": data, "model_parameters": []}
    other, _, loader, _ = begin(model=make(), **given)
    assert loader is other.training_dataloader
    loader.sampler.set_epoch(1)
    seen = sum(map(len, loader))
    assert seen == 18 // WORLD_SIZE
    repeated = iter(deepspeed.utils.RepeatingLoader(loader))
    assert sum(len(next(repeated)) for _ in range(2 * len(loader))) == 2 * seen
    raises(ValueError, "route", engine.deepspeed_io, data, route="test")
    raises(ValueError, "Dataset", engine.deepspeed_io, iter([1]))


def case_states_stay_where_they_are() -> None:
    kinds = deepspeed.runtime.zero.offload_config.OffloadStateTypeEnum
    engine, optimizer, *_ = start(3)
    before = engine._core.parameter_hash()
    for owner in (engine, optimizer):
        owner.offload_states(include=[kinds.optim_states, "hp_params"], non_blocking=True)
        owner.reload_states()
    engine.empty_partition_cache()
    assert engine._core.parameter_hash() == before
    raises(ValueError, "nvme", engine.offload_states, device="nvme")
    raises(ValueError, "gradients", engine.offload_states, include=["gradients"])
    judge, *_ = begin(model=make(), config=config(3))
    raises(AssertionError, "optimizer", judge.offload_states)


def case_the_engine_answers_what_is_configured() -> None:
    offload = {"device": "cpu", "ratio": 0.5}
    zero = {"stage": 2, "reduce_bucket_size": 1e5, "offload_optimizer": offload}
    engine, *_ = start(2, zero_optimization=zero, checkpoint={"tag_validation": "FAIL"})
    for query, answer in {
        engine.zero_reduce_bucket_size: 100000,
        engine.zero_allgather_bucket_size: 500000000,
        engine.zero_cpu_offload: True,
        engine.zero_nvme_offload_optimizer: False,
        engine.zero_partial_offload: 0.5,
        engine.checkpoint_tag_validation_fail: True,
        engine.optimizer_name: "adamw",
        engine.get_type: ["AdamW"],
        engine.is_deepcompile_enabled: False,
    }.items():
        assert (query(), type(query())) == (answer, type(answer)), query
    assert engine.optimizer_params()["lr"] == 1e-2
    assert engine.dynamic_loss_scale_args()["init_scale"] == 2.0**16
    autocast = {"enabled": True, "dtype": "float16"}
    engine, optimizer, *_ = start(1, torch_autocast=autocast)
    assert engine.torch_autocast_enabled()
    assert engine.torch_autocast_dtype() == torch.float16
    assert optimizer.needs_scaler()
    raises(NotImplementedError, "sparse_allreduce is not part of zerorun", engine.sparse_allreduce)


def case_the_accelerator_of_cpu_ranks() -> None:
    accelerator = deepspeed.get_accelerator()
    assert isinstance(accelerator, deepspeed.accelerator.DeepSpeedAccelerator)
    assert accelerator.device_count() == WORLD_SIZE == int(os.environ["LOCAL_SIZE"])
    assert accelerator.communication_backend_name() == "gloo"
    assert 0 < accelerator.available_memory() <= accelerator.total_memory()
    state = accelerator.get_rng_state()
    drawn = torch.rand(3)
    accelerator.set_rng_state(state)
    assert torch.equal(torch.rand(3), drawn)
    assert accelerator.FloatTensor([1.5]).dtype == torch.float32
    builder = accelerator.create_op_builder("CPUAdamBuilder")
    assert (builder.name, builder.BUILD_VAR) == ("cpu_adam", "DS_BUILD_CPU_ADAM")
    assert not builder.is_compatible()
    built = builder.load()  # as programs have it compiled before they start
    text = "cpu_adam.create_adam is not part of zerorun"
    raises(NotImplementedError, text, lambda: built.create_adam(0, 1e-3))
    raises(NotImplementedError, "zerorun", accelerator.build_extension)


def case_optimizers_have_the_class_of_their_stage() -> None:
    zero = deepspeed.runtime.zero
    assert type(start(1)[1]) is zero.stage_1_and_2.DeepSpeedZeroOptimizer
    engine, optimizer, *_ = start(3)
    assert type(optimizer) is zero.stage3.DeepSpeedZeroOptimizer_Stage3
    with zero.stage3.unwrap_model_for_generation(engine) as module:
        assert module is engine.module
        assert module.blocks[0].up.weight.shape == (128, 32)


def case_attention_is_made_by_the_program() -> None:
    from deepspeed.runtime.sequence_parallel.ulysses_sp import UlyssesSPAttentionHF
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    deepspeed.init_distributed()
    torch.manual_seed(0)
    module = torch.nn.Module()
    module.is_causal, module.num_key_value_groups = True, 2
    whole = [torch.randn(2, heads, 8 * WORLD_SIZE, 4) for heads in (4, 2, 2)]
    options = {"is_causal": True, "enable_gqa": True}
    expected = torch.nn.functional.scaled_dot_product_attention(*whole, **options)
    group, sizes = torch.distributed.group.WORLD, (8, 8 * WORLD_SIZE)
    shared = UlyssesSPAttentionHF(sdpa_attention_forward, 2, 4, 4, 2, 1, group, False, *sizes)
    tokens = slice(8 * RANK, 8 * RANK + 8)
    parts = [tensor[:, :, tokens] for tensor in whole]
    positions = torch.arange(8 * WORLD_SIZE)[None, tokens]
    found, _ = shared(module, *parts, None, position_ids=positions)
    torch.testing.assert_close(found, expected.transpose(1, 2)[:, tokens].flatten(2))
    assert (shared.world_size, shared.sp_rank) == (WORLD_SIZE, RANK)
    for heads, kv_heads in ((3, 1), (6, 3)):
        given = (sdpa_attention_forward, 2, heads, 4, kv_heads, 1, group, True)
        raises(ValueError, "head count", UlyssesSPAttentionHF, *given)


def case_metrics_and_monitors_by_deepspeeds_names(folder: Path) -> None:
    from deepspeed.monitor.config import get_monitor_config
    from deepspeed.monitor.monitor import MonitorMaster as DeepSpeedMaster

    sections = {"csv_monitor": {"enabled": True, "output_path": str(folder), "job_name": "own"}}
    on = {"enabled": True}
    engine, *_ = start(1, comms_logger=on, flops_profiler=on, **sections)
    assert engine.monitor.enabled
    text = io.StringIO()
    with logged(), contextlib.redirect_stdout(text):
        train(engine, 3)
        found = deepspeed.comm.log_summary(return_dict=True)
    assert found["summary"]["reduce_scatter"]
    assert ("Flops Profile" in text.getvalue()) == (RANK == 0)
    given = get_monitor_config(sections)
    assert (given.enabled, given.wandb.enabled) == (True, False)
    monitors = DeepSpeedMaster(given)
    monitors.write_events([("Train/x", 1.5, 3)])
    if RANK == 0:
        assert (folder / "own" / "Train_x.csv").read_text().split() == ["step,x", "3,1.5"]
        assert monitors.tb_monitor is None
