"""zerorun.config: the typed form of a ds_config.json, and errors that say what is wrong."""

import json
from pathlib import Path

import pytest
import zerorun
from zerorun import config

DS_CONFIG = {
    "train_batch_size": 32,
    "train_micro_batch_size_per_gpu": 4,
    "gradient_clipping": 0.5,
    "bf16": {"enabled": True},
    "optimizer": {"type": "Adam", "params": {"lr": 0.0003, "betas": [0.8, 0.95], "eps": 1e-7}},
    "communication_data_type": "fp32",
    "gradient_allreduce_op": "sum",
    "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 7}},
    "zero_optimization": {"stage": 3, "stage3_prefetch_bucket_size": 1e6},
}


def test_a_dictionary_becomes_typed() -> None:
    parsed = config.parse(DS_CONFIG).config
    assert parsed.source == "<dict>"
    assert parsed.batch.train_batch_size == 32
    assert parsed.batch.micro_batch_size == 4
    assert parsed.precision.param_dtype == "bf16"
    assert parsed.precision.grad_accum_dtype is None
    assert parsed.precision.communication_dtype == "fp32"
    assert parsed.precision.gradient_reduction == "sum"
    assert parsed.precision.loss_scaler.initial_scale_power == 16
    assert parsed.optimizer.type == "Adam"
    assert parsed.optimizer.lr == pytest.approx(0.0003)
    assert parsed.optimizer.beta2 == pytest.approx(0.95)
    assert (parsed.scheduler.type, parsed.scheduler.warmup_num_steps) == ("WarmupLR", 7)
    assert parsed.zero.stage == 3
    assert parsed.zero.prefetch_bucket_size == 1_000_000
    assert parsed.zero.overlap_comm is True  # not given: as in DeepSpeed, on at stage 3
    assert parsed.gradient_clipping == 0.5


def test_dictionary_text_and_file_mean_the_same(tmp_path: Path) -> None:
    path = tmp_path / "ds_config.json"
    path.write_text(json.dumps(DS_CONFIG))
    from_file = config.load(path)
    assert from_file.config.source == str(path)
    from_text = config.parse(path.read_text())
    from_dict = config.parse(DS_CONFIG)

    def values(parsed: config.ParsedConfig) -> list[tuple[str, str, bool]]:
        return [(v.pointer, v.value, v.is_default) for v in parsed.values]

    assert values(from_file) == values(from_text) == values(from_dict)
    assert ("/zero_optimization/stage", "3", False) in values(from_dict)


def test_objects_show_their_fields() -> None:
    text = repr(config.parse(DS_CONFIG).config)
    assert "zero=ZeroConfig(stage=3, " in text
    assert "batch=BatchConfig(train_batch_size=32, micro_batch_size=4, " in text


def test_auto_is_resolved_or_named() -> None:
    auto = {
        "zero_optimization": {"reduce_bucket_size": "auto"},
        "scheduler": {"type": "linear", "params": {"total_num_steps": "auto"}},
    }
    parsed = config.parse(auto)
    resolved = config.resolve_auto(parsed, hidden_size=64, total_steps=50)
    assert resolved.config.zero.reduce_bucket_size == 4096
    assert resolved.config.scheduler.total_num_steps == 50
    assert parsed.config.scheduler.total_num_steps == 0  # the argument stays as it was
    with pytest.raises(zerorun.ConfigError, match="/scheduler/params/total_num_steps"):
        config.resolve_auto(parsed)


def nested(depth: int) -> dict:
    value: dict = {}
    for _ in range(depth):
        value = {"a": value}
    return value


@pytest.mark.parametrize("value", [{"a": {1, 2}}, {"a": object()}, nested(100), nested(10**6)])
def test_dictionaries_that_are_no_json_are_errors(value: dict) -> None:
    with pytest.raises(zerorun.ConfigError):
        config.parse(value)


def test_infinity_and_paths_are_read() -> None:
    parsed = config.parse(
        {"steps_per_print": float("inf"), "zerorun": {"train": {"save": Path("out")}}}
    ).config
    assert parsed.steps_per_print == 2**63 - 1
    assert json.loads(parsed.train_options) == {"save": "out"}


def test_schema_describes_the_keys() -> None:
    properties = config.schema()["properties"]
    assert "gradient_clipping" in properties
    assert "stage" in properties["zero_optimization"]["properties"]
