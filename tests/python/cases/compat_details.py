"""What programs that use DeepSpeed's smaller interfaces meet, one case each."""

import functools
import os
import sys
import types
import warnings
from pathlib import Path
from unittest.mock import patch

import deepspeed
import torch
import zerorun
from deepspeed.checkpoint import UNIVERSAL_CHECKPOINT_INFO, ds_to_universal
from deepspeed.utils import safe_get_full_fp32_param
from deepspeed.utils.timer import ThroughputTimer
from zerorun.hooks.shared_unit import external_parameters

from cases.compat import begin, start
from cases.models import RANK, WORLD_SIZE, assert_close, config, make, raises, train


def _own_section() -> tuple[type, type]:
    """What a program derives: the class and its base."""
    from deepspeed.runtime.config_utils import DeepSpeedConfigModel

    class Inner(DeepSpeedConfigModel):
        sizes: list = []  # noqa: RUF012 - each model has its own

    class Own(Inner):
        name: str
        enabled: bool = False

    return Own, DeepSpeedConfigModel


def case_sections_need_pydantic_and_engines_do_not() -> None:
    names = ("pydantic", "deepspeed.runtime.config_utils")
    before = {name: sys.modules.pop(name) for name in names if name in sys.modules}
    sys.modules["pydantic"] = None  # an import of it is an ImportError
    try:
        raises(ImportError, "pip install pydantic", _own_section)
        engine, *_ = start(1, fp16={"enabled": True, "loss_scale": "8"})
        engine.destroy()
        whole = deepspeed.DeepSpeedConfig(config(1))
        assert whole.zero_optimization_stage == 1
        raises(ImportError, "pip install pydantic", lambda: whole.zero_config)
    finally:
        del sys.modules["pydantic"]
        sys.modules.update(before)


def case_programs_derive_sections_that_are_pydantics_models() -> None:
    import pydantic

    own, base = _own_section()

    class Renamed(base):
        before: str = pydantic.Field(
            "", json_schema_extra={"deprecated": True, "new_param": "after", "new_param_fn": list}
        )
        after: list = []  # noqa: RUF012
        count: int = pydantic.Field(2, alias="number")

    model = own(name="a", enabled="yes", sizes="auto")
    assert model.model_dump() == {"sizes": [], "name": "a", "enabled": True}
    assert issubclass(own, pydantic.BaseModel)
    assert issubclass(own, base)
    assert isinstance(model, base)
    assert not issubclass(pydantic.BaseModel, base)
    for wrong in ({}, {"name": "a", "nam": "b"}, {"name": []}):
        raises(pydantic.ValidationError, "Own", functools.partial(own, **wrong))
    assert Renamed(before="xy").after == ["x", "y"]
    assert (Renamed(number=5).count, Renamed(count=6).count, Renamed().after) == (5, 6, [])
    raises(AssertionError, "together", Renamed, before="x", after=[])


def _groups(*rates: float) -> torch.optim.Optimizer:
    """An optimizer with a group of each rate."""
    return torch.optim.SGD(
        [{"params": [torch.nn.Parameter(torch.zeros(1))], "lr": rate} for rate in rates]
    )


def case_a_schedule_takes_rates_of_its_groups() -> None:
    schedules = deepspeed.runtime.lr_schedules
    warmup = schedules.WarmupLR(_groups(0.5, 0.25), warmup_num_steps=4)
    assert (warmup.max_lrs, warmup.get_last_lr()) == ([0.5, 0.25], [0, 0])
    warmup.step(4)
    assert warmup.get_lr() == [0.5, 0.25]
    decay = schedules.WarmupDecayLR(_groups(0.5), total_num_steps=9, warmup_num_steps=3)
    assert decay.max_lrs == [0.001]
    cosine = schedules.WarmupCosineLR(_groups(0.5), total_num_steps=9, warmup_num_steps=3)
    assert cosine.get_last_lr() == [0]
    raises(ValueError, "warmup_num_steps", lambda: schedules.WarmupLR(_groups(1), 0, 1, None))


def case_masters_of_stage_0_have_their_names() -> None:
    engine, optimizer, *_ = start(0, bf16={"enabled": True})
    train(engine, 2)
    (flat,) = optimizer.fp32_groups_flat
    (whole,) = optimizer.fp32_groups
    assert torch.equal(flat, torch.cat([master.flatten() for master in whole]))
    for parameter, master in zip(engine.module.parameters(), whole, strict=True):
        assert torch.equal(master, safe_get_full_fp32_param(parameter))
    for stage, section in ((0, {}), (1, {"bf16": {"enabled": True}})):
        engine, optimizer, *_ = start(stage, **section)
        assert not hasattr(optimizer, "fp32_groups_flat")


def _to_universal(source: Path, target: Path) -> None:
    """As a program calls it: on rank 0, with what DeepSpeed's options make."""
    if RANK == 0:
        args = types.SimpleNamespace(input_folder=str(source), output_folder=str(target))
        args.num_extract_workers = args.num_merge_workers = 1
        args.keep_temp_folder, args.strict, args.inject_missing_state = False, True, False
        ds_to_universal.main(args)
    torch.distributed.barrier()


def case_a_universal_checkpoint_is_the_checkpoint(folder: Path) -> None:
    engine, *_ = start(2)
    train(engine, 2)
    engine.save_checkpoint(folder, "saved", client_state={UNIVERSAL_CHECKPOINT_INFO: {}, "i": 2})
    (folder / "not_one").mkdir(exist_ok=True)
    for _ in range(2):  # another time replaces it
        _to_universal(folder / "saved", folder / "saved_universal")
    assert (folder / "latest_universal").read_text() == "saved_universal"
    assert (folder / "latest").read_text().strip() == "saved"  # a save's
    expected = train(engine, 2, first=2)
    other, *_ = start(3, checkpoint={"load_universal": True})
    path, client_state = other.load_checkpoint(folder, "saved_universal")
    assert (Path(path).name, client_state["i"]) == ("saved_universal", 2)
    assert train(other, 2, first=2) == expected
    other.destroy()
    if RANK == 0:
        no_checkpoint = functools.partial(_to_universal, folder / "not_one", folder / "other")
        raises(zerorun.CheckpointError, "not_one: no checkpoint", no_checkpoint)
        (folder / "not_one" / "kept").touch()
        taken = functools.partial(_to_universal, folder / "saved", folder / "not_one")
        raises(zerorun.CheckpointError, "and is no checkpoint: name another", taken)
        assert (folder / "not_one" / "kept").exists()


def case_a_universal_checkpoint_takes_a_torch_optimizers_states_along(folder: Path) -> None:
    def at_start() -> zerorun.ZeroEngine:
        model = make()
        optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3, momentum=0.9)
        return begin(model=model, optimizer=optimizer, config=config(1))[0]

    engine = at_start()
    train(engine, 2)
    engine.save_checkpoint(folder / "a", "saved")
    _to_universal(folder / "a" / "saved", folder / "b" / "moved")
    expected = train(engine, 2, first=2)
    engine.destroy()
    if RANK == 0:
        for path in (folder / "a").iterdir():  # the copy stands on its own
            path.rename(folder / f"gone-{path.name}")
    torch.distributed.barrier()
    other = at_start()
    assert other.load_checkpoint(folder / "b")[0] == str(folder / "b" / "moved")
    assert train(other, 2, first=2) == expected


def case_a_save_needs_no_modes_of_files(folder: Path) -> None:
    """Shares of files that refuse chmod."""
    engine, *_ = start(1)
    with patch("os.chmod", side_effect=PermissionError("refused")):
        engine.save_checkpoint(folder, "saved")
    assert (folder / "zero_to_fp32.py").exists()
    assert not os.access(folder / "zero_to_fp32.py", os.X_OK)


def case_a_throughput_timer_wants_whole_numbers() -> None:
    settings = types.SimpleNamespace(enabled=True, synchronized=False)
    wanted = "must be greater than 0"
    for wrong, text in ((0, wanted), (-1, wanted), (1.5, "a positive integer or None")):
        raises(ValueError, text, ThroughputTimer, settings, 1, 2, wrong)
    timer = ThroughputTimer(settings, 1, steps_per_output=3)
    for timer.global_step_count, reports in ((5, False), (6, True)):
        assert timer._is_report_boundary() is reports


def case_a_model_is_made_for_mics_as_for_any_shards() -> None:
    zero = {"stage": 3, "stage3_param_persistence_threshold": 0, "mics_shard_size": 1}
    settings = config(3) | {"zero_optimization": zero}
    with deepspeed.zero.MiCS_Init(config_dict_or_path=settings):
        model = make()
    assert model.head.weight.ds_status is deepspeed.zero.ZeroParamStatus.NOT_AVAILABLE
    engine, *_ = start(3, model, zero_optimization=zero)
    plain, *_ = start(3)
    assert_close(train(engine, 2), train(plain, 2))
    engine.destroy()


def case_external_parameters_are_named_where_deepspeed_has_them() -> None:
    from deepspeed.runtime.zero import partition_parameters

    engine, *_ = start(3)
    module, weight = engine.module.blocks[0], engine.module.head.weight
    partition_parameters.register_external_parameter(module, weight)
    assert external_parameters(module) == [weight]
    partition_parameters.unregister_external_parameter(module, weight)
    assert external_parameters(module) == []


def case_numbers_of_fp16_are_read_as_there() -> None:
    import pydantic
    from deepspeed.runtime.precision_config import DeepSpeedFP16Config

    static = {"enabled": True, "loss_scale": "128", "loss_scale_window": 0, "min_loss_scale": "0"}
    engine, *_ = start(1, fp16=static)
    assert engine.loss_scale() == 128
    engine.destroy()
    assert DeepSpeedFP16Config(**static).loss_scale == 128
    off = {"enabled": False, "loss_scale_window": 0}
    start(1, fp16=off)[0].destroy()
    for wrong in (
        {"loss_scale": True},
        {"loss_scale": -1},
        {"min_loss_scale": "x"},
        {"hysteresis": None},
        {"loss_scale_window": 0},
        {"min_loss_scale": -1},
    ):
        (key,) = wrong
        given = {"enabled": True, **wrong}
        raises(deepspeed.DeepSpeedConfigError, f"/fp16/{key}", start, 1, fp16=given)
        raises(pydantic.ValidationError, key, DeepSpeedFP16Config, **given)


def case_states_have_their_dtype_where_a_rank_has_none() -> None:
    halves = {
        "enabled": True,
        "bf16_master_weights_and_grads": True,
        "bf16_optimizer_states": True,
    }
    adam = {"type": "AdamW", "params": {"torch_adam": False}}
    engine, optimizer, *_ = start(2, bf16=halves, optimizer=adam)
    train(engine, 1)
    kept = [optimizer.state[p]["exp_avg"] for p in engine.module.parameters()]
    assert any(state.numel() == 0 for state in kept) is (WORLD_SIZE > 1)
    assert {state.dtype for state in kept} == {torch.bfloat16}


def case_a_cycle_tells_its_shape() -> None:
    kind = deepspeed.runtime.lr_schedules.OneCycle
    cycle = kind(torch.optim.Adam(make().parameters()), 0.1, 0.2, cycle_first_step_size=6)
    assert (cycle.first_step_size, cycle.second_step_size, cycle.total_size) == (6, 6, 12)
    assert (cycle.step_ratio, cycle.first_stair_count, cycle.second_stair_count) == (0.5, 0, 0)
    assert cycle.skip_lr_decay
    assert cycle.skip_mom_decay
    steps = {"cycle_first_step_size": 3, "cycle_second_step_size": 1, "cycle_first_stair_count": 2}
    steps |= {"decay_step_size": 5, "decay_lr_rate": 0.1}
    decaying = kind(torch.optim.Adam(make().parameters()), 0.1, 0.2, **steps)
    assert (decaying.total_size, decaying.step_ratio) == (4, 0.75)
    assert (decaying.second_stair_count, decaying.skip_lr_decay) == (2, False)
    assert decaying.skip_mom_decay


def case_checkpoints_need_a_folder() -> None:
    engine, *_ = start(1)
    for nothing in (None, ""):
        raises(ValueError, "save_dir", engine.save_checkpoint, nothing)
    engine.destroy()
    name = deepspeed.checkpoint.get_model_ckpt_name_for_rank("f", "00")
    assert name == "f/mp_rank_00_model_states.pt"


def case_a_warning_is_at_the_programs_line() -> None:
    if deepspeed.get_accelerator().communication_backend_name() == "nccl" or RANK > 0:
        return
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        deepspeed.comm._backend("nccl")
    assert [warning.filename for warning in found] == [__file__]


def case_launchers_of_programs() -> None:
    from deepspeed.launcher.multinode_runner import MultiNodeRunner
    from deepspeed.launcher.runner import parse_args

    class Own(MultiNodeRunner):
        def backend_exists(self) -> bool:
            return True

        def get_cmd(self, environment: dict[str, str], active_resources: object) -> list[str]:
            return ["start", self.user_script, *self.user_arguments]

    line = ["--num_gpus", "2", "--module", "-i", "a:0", "train", "--lr", "1"]
    args = parse_args(line)
    assert (args.num_gpus, args.num_nodes, args.module, args.no_ssh) == (2, -1, True, False)
    assert (args.include, args.hostfile, args.ssh_port) == ("a:0", "/job/hostfile", None)
    raises(SystemExit, "2", parse_args, ["--autotuning", "train.py"])  # without tune or run
    runner = Own(args, "world")
    assert runner.get_cmd({}, {}) == ["start", "train", "--lr", "1"]
    assert runner.name == "Own"
    for value, written in (("64(x2)", '"64(x2)"'), (" /usr/lib ", "/usr/lib")):
        runner.add_export("NAME", value)
        assert runner.exports == {"NAME": written}
    raises(TypeError, "abstract", MultiNodeRunner, args, "")


def case_programs_log_collectives_of_their_own() -> None:
    from deepspeed.utils.comms_logging import CommsLogger

    log = CommsLogger()
    log.start_profiling_op(["reduce"])
    log.stop_profiling_op(["reduce"])
    log.stop_profiling_comms()
    assert (log.prof_ops, log.prof_all, log.has_data()) == ([], False, False)
    for latency in (3.0, 1.0, 2.0):
        log.append("all_reduce", "all_reduce of x", latency, 1024)
    assert log.get_raw_data()["all_reduce of x"][1024][:2] == [3, [3.0, 1.0, 2.0]]
    summary = log.get_operation_summary("all_reduce of x")[1024]
    assert (summary["avg_latency_ms"], summary["total_latency_ms"]) == (2.0, 6.0)
    assert (log.get_operation_names(), log.get_total_operations()) == (["all_reduce of x"], 3)
    assert log.get_operation_summary("other") is None
    assert log.log_all(print_log=False, return_dict=True)["summary"].keys() == {"all_reduce of x"}
    log.reset_data()
    assert not log.has_data()
