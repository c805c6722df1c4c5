"""What programs that use DeepSpeed's smaller interfaces meet, one case each."""

from deepspeed.checkpoint import UNIVERSAL_CHECKPOINT_INFO, ds_to_universal

from cases.compat import *


def _own_section() -> tuple[type, type]:
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
        start(1, fp16={"enabled": True, "loss_scale": "8"})
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
    assert isinstance(model, base)
    assert isinstance(model, pydantic.BaseModel)
    assert not issubclass(pydantic.BaseModel, base)
    for wrong in ({}, {"name": "a", "nam": "b"}, {"name": []}):
        raises(pydantic.ValidationError, "Own", own, **wrong)
    assert Renamed(before="xy").after == ["x", "y"]
    assert (Renamed(number=5).count, Renamed(count=6).count, Renamed().after) == (5, 6, [])
    raises(AssertionError, "together", Renamed, before="x", after=[])


def case_masters_and_states_have_their_names_and_dtypes() -> None:
    engine, optimizer, *_ = start(0, **BF16)
    train(engine, 2)
    (flat,), (whole,) = optimizer.fp32_groups_flat, optimizer.fp32_groups
    masters = [deepspeed.utils.safe_get_full_fp32_param(p) for p in engine.module.parameters()]
    assert_same(list(whole), masters)
    assert_same(flat, torch.cat([master.flatten() for master in masters]))
    for stage, section in ((0, {}), (1, BF16)):
        assert not hasattr(start(stage, **section)[1], "fp32_groups_flat")
    keys = ("enabled", "bf16_master_weights_and_grads", "bf16_optimizer_states")
    adam = {"type": "AdamW", "params": {"torch_adam": False}}
    engine, optimizer, *_ = start(2, bf16=dict.fromkeys(keys, True), optimizer=adam)
    train(engine, 1)
    kept = [optimizer.state[p]["exp_avg"] for p in engine.module.parameters()]
    assert any(state.numel() == 0 for state in kept)  # of what the other rank stores
    assert {state.dtype for state in kept} == {torch.bfloat16}


def _to_universal(source: Path, target: Path) -> None:
    """As a program calls it: on rank 0, with what DeepSpeed's options make."""
    if RANK == 0:
        args = types.SimpleNamespace(input_folder=str(source), output_folder=str(target))
        args.num_extract_workers = args.num_merge_workers = 1
        args.keep_temp_folder, args.strict, args.inject_missing_state = False, True, False
        ds_to_universal.main(args)
    torch.distributed.barrier()


def case_a_universal_checkpoint_is_the_checkpoint(folder: Path) -> None:
    deepspeed.init_distributed()
    client_state = {UNIVERSAL_CHECKPOINT_INFO: {}, "i": 2}
    for make_optimizer in (adamw, rmsprop):
        path = folder / make_optimizer.__name__
        _, engine = started(config(2), optimizer=make_optimizer)
        train(engine, 2)
        engine.save_checkpoint(path, "saved", client_state=client_state)
        for _ in range(2):  # another time replaces it
            _to_universal(path / "saved", path / "universal")
        assert (path / "latest_universal").read_text() == "universal"
        assert (path / "latest").read_text().strip() == "saved"  # a save's
        expected = train(engine, 2, first=2)
        _to_universal(path / "saved", path / "moved" / "universal")
        if RANK == 0:
            shutil.rmtree(path / "saved")  # the copy stands on its own
        torch.distributed.barrier()
        model = make()
        settings = config(3, checkpoint={"load_universal": True})
        other, *_ = begin(model=model, optimizer=make_optimizer(model), config=settings)
        loaded, state = other.load_checkpoint(path / "moved")
        assert (loaded, state["i"]) == (str(path / "moved" / "universal"), 2)
        assert train(other, 2, first=2) == expected
    if RANK == 0:
        (folder / "not_one").mkdir()
        (folder / "not_one" / "kept").touch()
        for source, target, text in (
            (folder / "not_one", folder / "other", "not_one: no checkpoint"),
            (path / "universal", folder / "not_one", "and is no checkpoint: name another"),
        ):
            raises(zerorun.CheckpointError, text, _to_universal, source, target)
        assert (folder / "not_one" / "kept").exists()


def case_a_model_is_made_for_mics_as_for_any_shards() -> None:
    zero = {"stage": 3, "stage3_param_persistence_threshold": 0, "mics_shard_size": 1}
    settings = config(3) | {"zero_optimization": zero}
    with deepspeed.zero.MiCS_Init(config_dict_or_path=settings):
        model = make()
    assert model.head.weight.ds_status is deepspeed.zero.ZeroParamStatus.NOT_AVAILABLE
    engine, *_ = start(3, model, zero_optimization=zero)
    assert_close(train(engine, 2), reference(steps=2)[0])


def case_numbers_of_fp16_are_read_as_there() -> None:
    import pydantic
    from deepspeed.runtime.precision_config import DeepSpeedFP16Config

    static = {"enabled": True, "loss_scale": "128", "loss_scale_window": 0, "min_loss_scale": "0"}
    assert start(1, fp16=static)[0].loss_scale() == 128
    assert DeepSpeedFP16Config(**static).loss_scale == 128
    start(1, fp16={"enabled": False, "loss_scale_window": 0})
    for key, value in (
        ("loss_scale", True),
        ("loss_scale", -1),
        ("min_loss_scale", "x"),
        ("hysteresis", None),
        ("loss_scale_window", 0),
        ("min_loss_scale", -1),
    ):
        given = {"enabled": True, key: value}
        raises(deepspeed.DeepSpeedConfigError, f"/fp16/{key}", start, 1, fp16=given)
        raises(pydantic.ValidationError, key, DeepSpeedFP16Config, **given)


def case_saves_need_a_folder_and_no_modes_of_files(folder: Path) -> None:
    engine, *_ = start(1, checkpoint={"tag_validation": "FAIL"})
    raises(ValueError, "save_dir", engine.save_checkpoint, None)
    text = "checkpoint tags differ"
    raises(AssertionError, text, engine.save_checkpoint, folder, tag=f"tag{RANK}")
    with mock.patch("os.chmod", side_effect=PermissionError("refused")):  # as shares of files do
        engine.save_checkpoint(folder, "saved")
    assert (folder / "zero_to_fp32.py").exists()
    assert not os.access(folder / "zero_to_fp32.py", os.X_OK)
    name = deepspeed.checkpoint.get_model_ckpt_name_for_rank("f", "00")
    assert name == "f/mp_rank_00_model_states.pt"


def case_launchers_of_programs() -> None:
    from deepspeed.launcher.multinode_runner import MultiNodeRunner
    from deepspeed.launcher.runner import parse_args

    class Own(MultiNodeRunner):
        def backend_exists(self) -> bool:
            return True

        def get_cmd(self, environment: dict[str, str], active_resources: object) -> list[str]:
            return ["start", self.user_script, *self.user_arguments]

    args = parse_args(["--num_gpus", "2", "--module", "-i", "a:0", "train", "--lr", "1"])
    assert (args.num_gpus, args.num_nodes, args.module) == (2, -1, True)
    assert (args.include, args.hostfile) == ("a:0", "/job/hostfile")
    raises(SystemExit, "2", parse_args, ["--autotuning", "train.py"])  # without tune or run
    runner = Own(args, "world")
    assert runner.get_cmd({}, {}) == ["start", "train", "--lr", "1"]
    assert runner.name == "Own"
    runner.add_export("NAME", "64(x2)")
    assert runner.exports == {"NAME": '"64(x2)"'}
    raises(TypeError, "abstract", MultiNodeRunner, args, "")


def case_programs_log_collectives_of_their_own() -> None:
    from deepspeed.utils.comms_logging import CommsLogger

    log = CommsLogger()
    log.start_profiling_op(["reduce"])
    log.stop_profiling_op(["reduce"])
    log.stop_profiling_comms()
    assert (log.prof_ops, log.prof_all, log.has_data()) == ([], False, False)
    for latency in (3.0, 1.0, 2.0):
        log.append("all_reduce", "x", latency, 1024)
    assert log.get_raw_data()["x"][1024][:2] == [3, [3.0, 1.0, 2.0]]
    summary = log.get_operation_summary("x")[1024]
    assert (summary["avg_latency_ms"], summary["total_latency_ms"]) == (2.0, 6.0)
    assert (log.get_operation_names(), log.get_total_operations()) == (["x"], 3)
    assert log.get_operation_summary("other") is None
    assert log.log_all(print_log=False, return_dict=True)["summary"].keys() == {"x"}
    log.reset_data()
    assert not log.has_data()
