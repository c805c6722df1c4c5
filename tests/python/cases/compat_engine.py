"""What scripts ask of DeepSpeed's engine and optimizer."""

from cases.compat import *


class Progress:
    """As MMEngine's message hub: a class that JSON knows nothing of."""

    epoch = 3


def case_objects_are_pickled_as_there_but_read_by_leave_only(folder: Path) -> None:
    engine, *_ = start(2)
    for method in (engine.save_checkpoint, engine._zero3_consolidated_16bit_state_dict):
        assert "exclude_frozen_parameters" in inspect.signature(method).parameters
    assert engine.save_checkpoint(folder, client_state={"progress": Progress()})
    raises(zerorun.CheckpointError, "has a pickle", engine.load_checkpoint, folder)
    engine, *_ = start(2, checkpoint={"pickle_client_state": True})
    _, state = engine.load_checkpoint(folder)
    assert state["progress"].epoch == 3


def case_the_configuration_is_the_given_dictionary() -> None:
    model = make()
    model.config = types.SimpleNamespace(hidden_size=32)
    engine, *_ = start(3, model)
    assert engine.config["zero_optimization"]["stage"] == 3
    assert engine._config.zero_config.stage == engine._config.zero_optimization_stage == 3
    assert engine._config.train_batch_size == engine.train_batch_size()
    assert engine._config.grad_accum_dtype is None
    assert engine.module.config.hidden_size == 32
    assert engine.blocks is engine.module.blocks  # other names are the model's
    engine._is_accelerate_prepared = True
    engine.module.forward = lambda tokens: tokens + 1
    assert engine(torch.ones(1)).item() == 2


def case_consolidated_weights_are_on_rank_zero() -> None:
    engine, *_ = start(3)
    state = engine._zero3_consolidated_16bit_state_dict()
    assert (state is None) == (RANK != 0)
    if state is not None:
        assert_same(state, dict(make().state_dict()))
        copies = deepspeed.checkpoint.utils.clone_tensors_for_torch_save({"a": [state]})
        assert copies["a"][0].keys() == state.keys()
    model = make()
    model.embedding.requires_grad_(False)  # the head's weight is the same parameter
    engine, *_ = start(2, model)
    raises(ValueError, "ZeRO-3", engine._zero3_consolidated_16bit_state_dict)
    whole = engine.module_state_dict(exclude_frozen_parameters=None)
    left_out = engine.module_state_dict(exclude_frozen_parameters=True)
    assert list(whole) == list(make().state_dict())
    assert set(whole) - set(left_out) == {"embedding.weight", "head.weight"}
    assert list(engine.module_state_dict(None, "its.")) == [f"its.{name}" for name in whole]


def case_values_for_the_module_are_those_of_a_checkpoint() -> None:
    def add(src: dict, dst: torch.nn.Module) -> None:
        for name, parameter in dst.named_parameters():
            parameter.data.copy_(src[name])

    expected = make().requires_grad_(False)
    for stage, fetch in ((2, False), (2, True), (3, True)):
        engine, *_ = start(stage)
        for load in (None, add):
            torch._foreach_add_(list(expected.parameters()), 1)
            values = {"module": expected.state_dict()}
            engine.load_module_state_dict(values, custom_load_fn=load, fetch_z3_params=fetch)
            if load is None or fetch:
                assert_values(engine.module, expected, rtol=0, atol=0)
    raises(zerorun.ConfigError, "at stage 3", engine.load_module_state_dict, values)


def case_bf16_training_is_the_same_at_every_stage_and_under_zero_init() -> None:
    """Masters begin at the rounded values; under zero.Init at those drawn in 16 bits."""
    rounded = make().to(torch.bfloat16).float()
    torch.set_default_dtype(torch.bfloat16)
    drawn = make().float()
    torch.set_default_dtype(torch.float32)
    for under_init, expected in ((False, rounded), (True, drawn)):
        hashes = set()
        for stage in range(4):
            with deepspeed.zero.Init(config_dict_or_path=config(3, **BF16), enabled=under_init):
                model = make()
            engine, *_ = start(stage, model, **BF16)
            for name, parameter in expected.named_parameters():
                master = deepspeed.utils.safe_get_full_fp32_param(model.get_parameter(name))
                assert torch.equal(master, parameter)
            train(engine, 2)
            hashes.add(engine._core.parameter_hash())
        assert len(hashes) == 1


def case_queries() -> None:
    engine, optimizer, *_ = start(2, gradient_accumulation_steps=2)
    assert (engine.train_batch_size(), engine.gradient_accumulation_steps()) == (8, 2)
    assert engine.train_micro_batch_size_per_gpu() == 4 // WORLD_SIZE
    assert engine.zero_optimization_stage() == 2
    assert not engine.zero_optimization_partition_weights()
    assert not engine.fp16_enabled()
    assert not engine.bfloat16_enabled()
    assert (engine.world_size, engine.global_rank) == (WORLD_SIZE, RANK)
    assert engine.local_rank == int(os.environ["LOCAL_RANK"])
    assert engine.device == torch.device("cpu")
    assert isinstance(optimizer, deepspeed.runtime.base_optimizer.DeepSpeedOptimizer)
    assert not engine.is_gradient_accumulation_boundary()
    engine, optimizer, *_ = start(2)
    train(engine, 4)
    timer = engine.tput_timer
    assert (timer.micro_step_count, timer.global_step_count) == (4, 4)
    assert timer.avg_samples_per_sec() > 0
    timer.update_epoch_count()
    assert (timer.epoch_count, timer.micro_step_count) == (1, 0)
    assert type(engine.basic_optimizer).__name__ == "AdamW"  # as loggers call its learning rate
    assert engine.dist_backend == torch.distributed.get_backend()
    for name, text in (("_get_norm_groups", "get_global_grad_norm()"), ("fp32_partitions", "safe")):
        raises(AttributeError, text, getattr, optimizer, name)


def run_script(*command: object) -> None:
    python = f"{sys.prefix}/bin/python"  # has imported PyTorch
    subprocess.run([python, *map(str, command)], check=True, capture_output=True)


def case_a_checkpoint_has_the_scripts_to_convert_it(folder: Path) -> None:
    from deepspeed.utils import zero_to_fp32, zero_to_torch

    engine, *_ = start(2)
    train(engine, 1)
    engine.save_checkpoint(folder)
    expected = {name: value.clone() for name, value in engine.module.state_dict().items()}
    model = zero_to_fp32.load_state_dict_from_zero_checkpoint(make(seed=9), str(folder))
    assert_same(dict(model.state_dict()), expected)
    folders = [str(folder), str(folder / f"out{engine.global_rank}")]
    half, whole = ["--dtype", "bfloat16", "-d"], ["--dtype=fp16", "--max_shard_size=1GB"]
    for convert, dtype in (
        (lambda: run_script(folder / "zero_to_fp32.py", *folders), torch.float32),
        (lambda: run_script(folder / "zero_to_torch.py", *folders, *half), torch.bfloat16),
        (lambda: zero_to_torch.main([*folders, *whole]), torch.float16),
    ):
        convert()
        state = torch.load(Path(folders[1]) / "pytorch_model.bin", weights_only=True)
        assert_same(state, {name: value.to(dtype) for name, value in expected.items()})
    lazy = zero_to_fp32.get_fp32_state_dict_from_zero_checkpoint(str(folder), lazy_mode=True)
    halves = zero_to_fp32.to_torch_tensor(lazy, dtype="bfloat16")
    assert halves["head.weight"] is halves["embedding.weight"]
    assert_same(dict(halves), {name: value.bfloat16() for name, value in expected.items()})
    tag = str(folder / "global_step1")
    assert zero_to_fp32.get_model_state_file(tag, 2) == f"{tag}/checkpoint.json"
    files = zero_to_fp32.get_optim_files(tag)
    assert len(files) == WORLD_SIZE
    Path(f"{files[0]}.header").touch()  # as beside a host's own files
    assert zero_to_fp32.get_optim_files(tag) == files
    raises(FileNotFoundError, "can't find", zero_to_fp32.get_optim_files, str(folder))


def case_another_batch_size_takes_more_micro_steps() -> None:
    results = []
    for steps in (1, 2):  # of the configuration
        engine, *_ = start(2, train_micro_batch_size_per_gpu=2, gradient_accumulation_steps=steps)
        engine.set_train_batch_size(2 * 2 * WORLD_SIZE)
        assert engine.gradient_accumulation_steps() == 2
        for index in range(4):
            backward(engine, index)
            assert engine.is_gradient_accumulation_boundary() == (index % 2 == 1)
            engine.step()
        assert engine.global_steps == 2
        results.append(engine._core.parameter_hash())
        wrong = 2 * WORLD_SIZE + 1
        refuses("train_batch_size", engine.set_train_batch_size, wrong)
    assert results[0] == results[1]


def case_trl_takes_hooks_off_and_puts_them_back() -> None:
    expected, _ = reference(steps=4)
    engine, *_ = start(3)
    losses = train(engine, 2)
    offload = engine.optimizer.parameter_offload
    with deepspeed.zero.GatheredParameters(engine.parameters()):
        model = offload.module
        external = (parameter for _, parameter in model.ds_external_parameters())
        for parameter in (*model.parameters(), *external):
            parameter.ds_active_sub_modules.clear()
        for hook in (*offload.forward_hooks, *offload.backward_hooks):
            hook.remove()
        offload.forward_hooks, offload.backward_hooks = [], []
        assert not offload.param_coordinator.is_invalid_trace()
        with torch.no_grad():
            generated = [own_loss(model, 0).item() for _ in range(2)]
        offload._register_deepspeed_module(offload.module)
    assert generated[0] == generated[1]
    assert_close(losses + train(engine, 2, first=2), expected)


def case_setting_what_is_not_there_is_an_error() -> None:
    utils = deepspeed.utils
    foreign = torch.nn.Parameter(torch.ones(3))
    assert utils.safe_get_full_fp32_param(foreign) is None
    refuses("belongs to no engine", utils.safe_set_full_fp32_param, foreign, torch.ones(3))
    for make_optimizer in (adamw, sgd):
        model, engine = started(config(3), optimizer=make_optimizer)
        train(engine, 1)
        weight = model.blocks[0].up.weight
        before = utils.safe_get_full_fp32_param(weight)
        assert utils.safe_get_full_optimizer_state(weight, "exp_average") is None
        for part in ("full", "local"):
            set_state = getattr(utils, f"safe_set_{part}_optimizer_state")
            values = getattr(utils, f"safe_get_{part}_fp32_param")(weight) + 1
            text = "exp_average of blocks.0.up.weight: there is no such state"
            refuses(text, set_state, weight, values, "exp_average")
            set_values = getattr(utils, f"safe_set_{part}_fp32_param")
            longer = torch.cat([values.flatten(), torch.zeros(1)])
            wrong = longer if RANK == WORLD_SIZE - 1 else values
            refuses("fp32_param of blocks.0.up.weight: got", set_values, weight, wrong)
        text = "gradients are there between backward and step"
        refuses(text, utils.safe_set_full_grad, weight, before)
        assert torch.equal(utils.safe_get_full_fp32_param(weight), before)


def case_masters_take_what_a_script_has_loaded_into_the_module() -> None:
    for stage in (0, 1, 2):
        engine, optimizer, *_ = start(stage, bf16={"enabled": True})
        train(engine, 1)
        loaded = make(seed=5).bfloat16()
        engine.module.load_state_dict(loaded.state_dict())
        optimizer.refresh_fp32_params()
        for found, expected in zip(engine.module.parameters(), loaded.parameters(), strict=True):
            master = deepspeed.utils.safe_get_full_fp32_param(found)
            assert torch.equal(master, expected.float())
