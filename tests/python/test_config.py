"""zerorun.config: the typed form of a ds_config.json, and errors that say what is wrong."""

import json
from pathlib import Path

import pytest
import zerorun
from zerorun import config

DS_CONFIG = {
    "train_batch_size": 32,
    "train_micro_batch_size_per_gpu": 4,
    "optimizer": {"type": "Adam", "params": {"lr": 0.0003, "betas": [0.8, 0.95], "eps": 1e-7}},
    "zero_optimization": {"stage": 3, "stage3_prefetch_bucket_size": 1e6},
}


def test_dictionary_text_and_file_mean_the_same(tmp_path: Path) -> None:
    path = tmp_path / "ds_config.json"
    path.write_text(json.dumps(DS_CONFIG))
    parsed = [config.load(path), config.parse(path.read_text()), config.parse(DS_CONFIG)]
    assert [each.config.source for each in parsed][::2] == [str(path), "<dict>"]
    values = [[(v.pointer, v.value, v.is_default) for v in each.values] for each in parsed]
    assert values == values[:1] * 3
    assert ("/zero_optimization/stage", "3", False) in values[0]
    shown = repr(parsed[0].config)
    assert "zero=ZeroConfig(stage=3, " in shown
    assert "batch=BatchConfig(train_batch_size=32, micro_batch_size=4, " in shown


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


@pytest.mark.parametrize("value", [{"a": {1, 2}}, nested(100), nested(10**6)])
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
