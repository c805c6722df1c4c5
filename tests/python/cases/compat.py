"""The traps of scripts written for DeepSpeed, on every rank; one case each."""

import base64
import importlib.metadata
import importlib.util
import subprocess

import deepspeed

from cases.models import *


def begin(**given: object) -> tuple:
    return kept(deepspeed.initialize(**given))


def start(stage: int = 3, model: torch.nn.Module | None = None, **keys: object):
    model = model or make()
    optimizer = {"type": "AdamW", "params": {"lr": 1e-2, "weight_decay": 0.1}}
    settings = config(stage, optimizer=optimizer) | keys
    return begin(model=model, config_params=settings)


def case_import_is_cheap_and_starts_nothing() -> None:
    assert importlib.util.find_spec("deepspeed").origin.endswith("deepspeed/__init__.py")
    assert importlib.metadata.version("deepspeed") == deepspeed.__version__ == "0.19.8+zerorun"
    assert not dist.is_initialized()
    assert not isinstance(torch.nn.Linear(1, 1), deepspeed.DeepSpeedEngine)


def case_zero_init_needs_no_process_group(folder: Path) -> None:
    """from_pretrained with HfDeepSpeedConfig comes before initialize."""
    from transformers import GPT2Config, GPT2LMHeadModel
    from transformers.integrations import HfDeepSpeedConfig

    torch.manual_seed(0)
    sizes = {"n_layer": 1, "n_head": 2, "n_embd": 16, "n_positions": 16, "vocab_size": 32}
    model = GPT2LMHeadModel(GPT2Config(**sizes))
    path = folder / str(RANK)
    model.save_pretrained(path)
    settings = config(3)
    keep = HfDeepSpeedConfig(settings)
    assert not dist.is_initialized()
    sharded = GPT2LMHeadModel.from_pretrained(path)
    del keep
    assert dist.is_initialized()
    assert sharded.transformer.wte.weight.shape == (0,)
    with deepspeed.zero.GatheredParameters(sharded.transformer.wte.weight):
        assert torch.equal(sharded.transformer.wte.weight, model.transformer.wte.weight)
    raises(TypeError, "remote_devise", deepspeed.zero.Init, remote_devise="cpu")
    for given, shape in (
        ({"zero_quantized_weights": True}, (0,)),  # the configuration decides
        ({"config_dict_or_path": config(3, someone_elses=1)}, (0,)),
        ({"remote_device": "none", "zero_quantized_weights": False, "enabled": False}, (2, 2)),
    ):
        with deepspeed.zero.Init(**given):
            assert torch.nn.Linear(2, 2).weight.shape == shape


def case_unknown_keys_at_the_top_are_ignored_in_sections_refused() -> None:
    extra = {"zero_optimization.reduce_bucket_size": 1e5, "someone_elses": {"key": 1}}
    extra["optimizer"] = {"type": "Adam", "torch_adam": True, "params": {"lr": 1e-2}}
    extra["scheduler"] = {"type": "WarmupLR", "comment": "", "params": {"warmup_num_steps": 5}}
    engine, *_ = start(3, steps_per_print=float("inf"), **extra)
    assert dist.is_initialized()
    train(engine, 1)
    wrong = {"train_batch_size": WORLD_SIZE, "zero_optimization": {"stag": 1}}
    refuses("/zero_optimization/stag", begin, model=make(), config=wrong)


def case_config_comes_from_one_place() -> None:
    settings = config(1)
    args = types.SimpleNamespace(deepspeed_config=settings, local_rank=0)
    for given in (args, {"deepspeed_config": settings, "local_rank": 0}):
        _, optimizer, *_ = begin(args=given, model=make())
        assert optimizer is None
    refuses("deepspeed_config", begin, model=make())
    refuses("Not sure how to proceed", begin, args=args, model=make(), config=settings)
    refuses("requires a model", begin, config=settings)


def case_a_file_means_what_its_content_means(folder: Path) -> None:
    file = folder / f"ds_config{RANK}.json"
    settings = config(2, someone_elses={"url": "a // b, /* c */ ]"}, steps_per_print=float("inf"))
    plain = json.dumps(settings)
    commented = plain.replace("{", "\ufeff{ // of ours, or # theirs\n", 1)[:-1] + ",/* end */ }"
    for text in (plain, commented):
        file.write_text(text, encoding="utf-8")
        for given in (str(file), base64.urlsafe_b64encode(text.encode()).decode()):
            engine, *_ = begin(model=make(), config=given)
            assert engine.config == settings
            assert deepspeed.DeepSpeedConfig(given).zero_optimization_stage == 2
    for text, problem in (
        ('{"train_batch_size": 4, "train_batch_size": 8}', "given twice"),
        ('{"train_batch_size": [,]}', "broken JSON"),
        ("[1]", "expected an object"),
    ):
        file.write_text(text)
        refuses(problem, deepspeed.DeepSpeedConfig, str(file))
        refuses(str(file), deepspeed.DeepSpeedConfig, file)
    for missing in ("missing.json", "missing"):
        refuses("No such file", begin, model=make(), config=missing)


def case_the_learning_rate_is_read_from_shared_groups() -> None:
    """accelerate: DeepSpeedCPUAdam on the groups of the user's AdamW, which a scheduler drives."""
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR
    plain, model = make(), make()
    basic, own = adamw(plain), adamw(model)
    schedulers = schedule(basic, T_max=10), schedule(own, T_max=10)
    own._opt_called = True
    options = {"lr": 1e-2, "weight_decay": 0.1, "adamw_mode": True}
    adam = deepspeed.ops.adam.DeepSpeedCPUAdam(own.param_groups, **options)
    engine, optimizer, *_ = begin(model=model, optimizer=adam, config=config(3))
    assert optimizer.param_groups[0] is adam.param_groups[0] is own.param_groups[0]
    for step in range(6):
        assert_close(train(engine, 1, first=step), [torch_step(plain, basic, step)])
        for scheduler in schedulers:
            scheduler.step()


def case_overflow_is_that_of_the_step_just_made() -> None:
    for stage in range(4):
        engine, optimizer, _, scheduler = start(
            stage, scheduler={"type": "WarmupLR", "params": {"warmup_max_lr": 0.01}}
        )
        assert engine.get_global_grad_norm() is None
        train(engine, 1)
        engine.zero_grad()
        assert engine.get_global_grad_norm() > 0
        assert (optimizer.overflow, engine.was_step_applied()) == (False, True)
        rate = engine.get_lr()
        engine.backward(loss_of(engine, part_of(batch_of(1))) * float("inf"))
        engine.step()
        assert (optimizer.overflow, engine.was_step_applied()) == (True, False)
        assert (engine.global_steps, engine.skipped_steps) == (2, 1)
        assert engine.get_lr() == rate == scheduler.get_last_lr()
        train(engine, 1, first=2)
        assert optimizer.overflow is False


def case_parameters_keep_identity_and_attributes(folder: Path) -> None:
    with deepspeed.zero.Init(config_dict_or_path=config(3)):
        model = make()
    weight = model.blocks[0].up.weight
    weight._is_hf_initialized = True
    engine, *_ = start(3, model)
    train(engine, 1)
    engine.save_checkpoint(folder)
    engine.load_checkpoint(folder)
    assert model.blocks[0].up.weight is weight
    assert weight._is_hf_initialized
    status = deepspeed.zero.ZeroParamStatus
    assert weight.ds_status == status.NOT_AVAILABLE
    with deepspeed.zero.GatheredParameters(weight):
        assert weight.ds_status == status.AVAILABLE
    assert not hasattr(torch.nn.Parameter(torch.ones(1)), "ds_status")


def case_hooks_may_be_wiped_and_the_module_initialised_again() -> None:
    """As Lightning does between fit and predict."""
    engine, *_ = start(3)
    model = engine.module
    first = train(engine, 1)
    with deepspeed.zero.GatheredParameters(model.parameters()):
        expected = own_loss(model, 0).item()
    for module in model.modules():
        for name in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks"):
            setattr(module, name, type(getattr(module, name))())
    again, *_ = begin(model=model, config=config(3), model_parameters=[])
    with torch.no_grad():
        assert own_loss(again, 0).item() == expected != first[0]


def case_what_is_absent_says_so() -> None:
    from deepspeed.compression.compress import init_compression  # of earlier versions
    from deepspeed.moe.ep_router import TokenChoiceTopKRouter as Router
    from deepspeed.pipe import PipelineModule

    assert not isinstance(make(), (Router, PipelineModule))
    raises(NotImplementedError, "init_inference", deepspeed.init_inference, make())
    raises(NotImplementedError, "quantiz", init_compression, make(), {})
    raises(AttributeError, "nothing_known", lambda: deepspeed.nothing_known)
    assert importlib.util.find_spec("deepspeed.unheard_of") is None


def case_layers_may_be_named_leaves() -> None:
    model = make()
    utils = deepspeed.utils
    ups = [block.up for block in model.blocks]
    assert utils.set_z3_leaf_modules(model, ["Block"]) == list(model.blocks)
    assert all(utils.z3_leaf_module(block) for block in model.blocks)
    utils.unset_z3_leaf_modules(model, ["Block"])
    assert utils.get_z3_leaf_modules(model) == []
    raises(ValueError, "No modules of type", utils.set_z3_leaf_modules, model, ["Nothing"])
    assert utils.set_z3_leaf_modules(model, ["Nothing"], raise_if_not_found=False) == []
    for choose, known, unknown, found in (
        (utils.set_z3_leaf_modules_by_name, "head", "tail", [model.head]),
        (utils.set_z3_leaf_modules_by_suffix, ".up", "x", ups),
    ):
        assert choose(model, [known, unknown], raise_if_not_found=False) == (found, [unknown])
        raises(ValueError, unknown, choose, model, [unknown])
    utils.set_z3_leaf_module(model.head, False)
    assert utils.get_z3_leaf_modules(model) == ups
    _, optimizer, *_ = start(3, model)
    assert optimizer.leaf_parameters == {up: [up.weight, up.bias] for up in ups}


def case_what_cannot_be_run_is_one_line() -> None:
    for module in ("no_such_module", "json.no_such_module", "email"):
        command = [sys.executable, "-m", "zerorun.compat", "-m", module]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        assert result.returncode == 1
        assert f"no module {module} that can be run" in result.stderr
        assert "Traceback" not in result.stderr


def case_a_group_of_one_is_gloos_and_keeps_its_timeout(folder: Path) -> None:
    script = folder / f"{RANK}.py"
    script.write_text("""if True:
        import datetime, deepspeed, torch, torch.distributed as dist
        deepspeed.init_distributed("nccl", timeout=datetime.timedelta(seconds=77))
        options = dist.group.WORLD._get_backend(torch.device("cpu")).options
        print(dist.get_backend(), dist.get_world_size(), options._timeout)
        print(deepspeed.init_distributed.__defaults__[4])
    """)
    hidden = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
    alone = {key: value for key, value in os.environ.items() if key not in hidden}
    alone |= {"DEEPSPEED_TIMEOUT": "7"}  # minutes, unless the program says otherwise
    command = [f"{sys.prefix}/bin/python", str(script)]  # which has imported PyTorch
    result = subprocess.run(command, env=alone, capture_output=True, text=True, check=True)
    assert result.stdout.split() == ["gloo", "1", "0:01:17", "0:07:00"]
    assert "the ranks run on CPUs: it is gloo" in result.stderr
