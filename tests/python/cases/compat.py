"""The traps of scripts written for DeepSpeed, on every rank; one case each."""

import base64
import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
import types
from pathlib import Path

import deepspeed
import torch
import torch.distributed as dist

from cases.models import *

RANK_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


def begin(**given: object) -> tuple:
    """deepspeed.initialize, whose engine ends with the case."""
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
    from deepspeed import DeepSpeedEngine

    assert not isinstance(torch.nn.Linear(1, 1), DeepSpeedEngine)


def case_zero_init_needs_no_process_group(folder: Path) -> None:
    """from_pretrained with HfDeepSpeedConfig comes before initialize."""
    from transformers import GPT2Config, GPT2LMHeadModel
    from transformers.integrations import HfDeepSpeedConfig

    torch.manual_seed(0)
    sizes = {"n_layer": 1, "n_head": 2, "n_embd": 16, "n_positions": 16, "vocab_size": 32}
    model = GPT2LMHeadModel(GPT2Config(**sizes))
    path = folder / str(os.environ["RANK"])
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
    with deepspeed.zero.Init(zero_quantized_weights=True):  # the configuration decides
        assert torch.nn.Linear(2, 2).weight.shape == (0,)
    with deepspeed.zero.Init(config_dict_or_path=config(3, someone_elses=1)):
        assert torch.nn.Linear(2, 2).weight.shape == (0,)
    with deepspeed.zero.Init(remote_device="none", zero_quantized_weights=False, enabled=False):
        assert torch.nn.Linear(2, 2).weight.shape == (2, 2)


def case_unknown_keys_at_the_top_are_ignored_in_sections_refused() -> None:
    extra = {"zero_optimization.reduce_bucket_size": 1e5, "someone_elses": {"key": 1}}
    extra["optimizer"] = {"type": "Adam", "torch_adam": True, "params": {"lr": 1e-2}}
    extra["scheduler"] = {"type": "WarmupLR", "comment": "", "params": {"warmup_num_steps": 5}}
    engine, *_ = start(3, steps_per_print=float("inf"), **extra)
    assert dist.is_initialized()
    train(engine, 1)
    engine.destroy()
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
    folder.mkdir(exist_ok=True)
    file = folder / f"ds_config{os.environ['RANK']}.json"
    settings = config(2, someone_elses={"url": "a // b, /* c */ ]"}, steps_per_print=float("inf"))
    plain = json.dumps(settings)
    commented = (
        "\ufeff" + plain.replace("{", "{ // of ours, or # theirs\n", 1)[:-1] + ",/* end */ }"
    )
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
    expected_model = make()
    expected_optimizer = torch.optim.AdamW(expected_model.parameters(), lr=1e-2, weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR
    scheduler = schedule(expected_optimizer, T_max=10)
    expected = []
    for step in range(6):
        expected.append(torch_step(expected_model, expected_optimizer, step))
        scheduler.step()
    model = make()
    own = torch.optim.AdamW(model.parameters(), lr=1e-2, betas=(0.9, 0.999), weight_decay=0.1)
    scheduler = schedule(own, T_max=10)
    own._opt_called = True
    adam = deepspeed.ops.adam.DeepSpeedCPUAdam(
        own.param_groups, lr=1e-2, weight_decay=0.1, adamw_mode=True
    )
    assert adam.param_groups[0] is own.param_groups[0]
    engine, optimizer, *_ = begin(model=model, optimizer=adam, config=config(3))
    assert optimizer.param_groups[0] is own.param_groups[0]
    losses = []
    for step in range(6):
        losses += train(engine, 1, first=step)
        scheduler.step()
    assert_close(losses, expected)


def case_overflow_is_that_of_the_step_just_made() -> None:
    for stage in range(4):
        engine, optimizer, _, scheduler = start(
            stage, scheduler={"type": "WarmupLR", "params": {"warmup_max_lr": 0.01}}
        )
        train(engine, 1)
        assert (optimizer.overflow, engine.was_step_applied()) == (False, True)
        rate = engine.get_lr()
        engine.backward(loss_of(engine, part_of(batch_of(1))) * float("inf"))
        engine.step()
        assert (optimizer.overflow, engine.was_step_applied()) == (True, False)
        assert (engine.global_steps, engine.skipped_steps) == (2, 1)
        assert engine.get_lr() == rate == scheduler.get_last_lr()
        train(engine, 1, first=2)
        assert optimizer.overflow is False


def case_the_gradient_norm_is_read_after_the_step() -> None:
    model = make()
    loss_of(model, batch_of(0)).backward()
    expected = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).item()
    engine, *_ = start(2)
    assert engine.get_global_grad_norm() is None
    train(engine, 1)
    engine.zero_grad()
    assert abs(engine.get_global_grad_norm() - expected) < 1e-4


def case_rates_are_there_before_the_first_step() -> None:
    params = {"warmup_min_lr": 0, "warmup_max_lr": 0.01, "warmup_num_steps": 5}
    engine, _, _, scheduler = start(1, scheduler={"type": "WarmupLR", "params": params})
    assert type(scheduler).__name__ not in ("DummyScheduler",)
    assert scheduler.get_last_lr() == engine.get_lr() == [0]
    train(engine, 1)
    assert scheduler.get_last_lr() == engine.get_lr()
    schedules = deepspeed.runtime.lr_schedules
    assert schedules.VALID_LR_SCHEDULES[-1] == schedules.WarmupCosineLR.__name__
    other = schedules.WarmupLR(engine.optimizer, **params)
    assert other.state_dict() == {"last_batch_iteration": -1}


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


def case_rotary_frequencies_keep_their_precision() -> None:
    from transformers.integrations import deepspeed as of_transformers

    if not hasattr(of_transformers, "prevent_arange_dtype_change"):  # from 5.21 on
        return

    class Rotary(Model):
        def __init__(self) -> None:
            super().__init__()
            frequencies = 1.0 / (10000 ** (torch.arange(0, 32, 2) / 32))
            self.register_buffer("inv_freq", frequencies, persistent=False)

    settings = config(3, bf16={"enabled": True})
    expected = make(Rotary).inv_freq
    with (
        of_transformers.prevent_arange_dtype_change(),
        deepspeed.zero.Init(config_dict_or_path=settings),
    ):
        model = make(Rotary)
    _ = begin(model=model, config=settings)
    assert torch.equal(model.inv_freq, expected)


def case_hooks_may_be_wiped_and_the_module_initialised_again() -> None:
    """As Lightning does between fit and predict."""
    engine, *_ = start(3)
    model = engine.module
    first = train(engine, 1)
    with deepspeed.zero.GatheredParameters(model.parameters()):
        expected = loss_of(model, part_of(batch_of(0))).item()
    for module in model.modules():
        for name in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks"):
            setattr(module, name, type(getattr(module, name))())
    again, *_ = begin(model=model, config=config(3), model_parameters=[])
    with torch.no_grad():
        assert loss_of(again, part_of(batch_of(0))).item() == expected != first[0]


def case_forward_may_be_replaced() -> None:
    engine, *_ = start(3)
    engine.module.forward = lambda tokens: tokens + 1
    assert engine(torch.ones(1)).item() == 2


def case_optimizers_of_deepspeed() -> None:
    ops = deepspeed.ops
    for kind in (
        ops.adam.FusedAdam,
        ops.lion.FusedLion,
        ops.lion.DeepSpeedCPULion,
        ops.lamb.FusedLamb,
        ops.adagrad.DeepSpeedCPUAdagrad,
    ):
        model = make()
        optimizer = kind(model.parameters(), lr=1e-3)
        engine, *_ = begin(model=model, optimizer=optimizer, config=config(3))
        losses = [train(engine, 1, first=0)[0] for _ in range(STEPS)]  # one batch, again and again
        assert losses[-1] < losses[0], kind
    from deepspeed.ops.adam import ZenFlowCPUAdam

    assert ZenFlowCPUAdam.__name__ == "ZenFlowCPUAdam"
    raises(NotImplementedError, "ZenFlowCPUAdam", ZenFlowCPUAdam, [])


def case_what_is_absent_says_so() -> None:
    from deepspeed.moe.ep_router import TokenChoiceTopKRouter as Router
    from deepspeed.pipe import PipelineModule

    raises(NotImplementedError, ".PipelineModule is not", PipelineModule, layers=[])
    raises(NotImplementedError, "zerorun", Router, 1)
    assert not isinstance(make(), (Router, PipelineModule))
    raises(NotImplementedError, "init_inference", deepspeed.init_inference, make())
    raises(AttributeError, "nothing_known", lambda: deepspeed.nothing_known)
    assert importlib.util.find_spec("deepspeed.unheard_of") is None


def case_layers_may_be_named_leaves() -> None:
    model = make()
    utils = deepspeed.utils
    assert utils.set_z3_leaf_modules(model, ["Block"]) == list(model.blocks)
    assert all(utils.z3_leaf_module(block) for block in model.blocks)
    utils.unset_z3_leaf_modules(model, ["Block"])
    assert utils.get_z3_leaf_modules(model) == []
    raises(ValueError, "No modules of type", utils.set_z3_leaf_modules, model, ["Nothing"])
    assert utils.set_z3_leaf_modules(model, ["Nothing"], raise_if_not_found=False) == []
    by_name = utils.set_z3_leaf_modules_by_name(model, ["head", "tail"], raise_if_not_found=False)
    assert by_name == ([model.head], ["tail"])
    raises(ValueError, "tail", utils.set_z3_leaf_modules_by_name, model, ["tail"])
    by_suffix = utils.set_z3_leaf_modules_by_suffix(model, [".up", "x"], raise_if_not_found=False)
    assert by_suffix == ([block.up for block in model.blocks], ["x"])
    raises(ValueError, "['x']", utils.set_z3_leaf_modules_by_suffix, model, ["x"])
    utils.set_z3_leaf_module(model.head, False)
    assert utils.get_z3_leaf_modules(model) == [block.up for block in model.blocks]
    assert (
        os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    )  # this launcher has no store of its own
    assert "deepspeed" in sys.modules


def case_what_cannot_be_run_is_one_line() -> None:
    for module in ("no_such_module", "json.no_such_module", "email"):
        command = [sys.executable, "-m", "zerorun.compat", "-m", module]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        assert result.returncode == 1
        assert f"no module {module} that can be run" in result.stderr
        assert "Traceback" not in result.stderr


def case_a_group_of_one_keeps_its_timeout() -> None:
    text = """if True:
        import datetime
        import deepspeed, torch.distributed as dist
        deepspeed.init_distributed(timeout=datetime.timedelta(seconds=77))
        options = dist.group.WORLD._get_backend(__import__("torch").device("cpu")).options
        assert options._timeout == datetime.timedelta(seconds=77), options._timeout
    """
    plain = {key: value for key, value in os.environ.items() if key not in RANK_VARIABLES}
    subprocess.run([sys.executable, "-c", text], env=plain, check=True)
