"""What zerorun.consolidate says before it reads a checkpoint; cases/checkpoints.py has the rest."""

import sys

import pytest
import zerorun
from zerorun.consolidate import save_fp32_model


@pytest.mark.parametrize(
    ("option", "value", "package"),
    [("max_shard_size", "1KB", "huggingface_hub"), ("safe_serialization", True, "safetensors")],
)
def test_a_package_that_an_option_needs_is_named(
    monkeypatch: pytest.MonkeyPatch, option: str, value: object, package: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)  # as if it were not installed
    monkeypatch.delitem(sys.modules, f"{package}.torch", raising=False)
    with pytest.raises(zerorun.ConfigError, match=f"{option} needs the package {package} "):
        save_fp32_model("nothing", "nowhere", **{option: value})
