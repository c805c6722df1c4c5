"""The environment variables that the package reads itself."""

import pytest
import zerorun
from zerorun import environment


def test_a_local_rank_is_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    assert environment.local_rank() is None
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert environment.local_rank() == 3


@pytest.mark.parametrize("text", ["", "-1", "one", "1.5", "٣"])
def test_a_local_rank_that_is_none_is_an_error(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("LOCAL_RANK", text)
    with pytest.raises(zerorun.ConfigError, match=f"LOCAL_RANK is '{text}', expected a number"):
        environment.local_rank()


@pytest.mark.parametrize(("text", "shares"), [("", False), ("0", False), ("1", True)])
def test_gpus_are_shared_when_asked(
    monkeypatch: pytest.MonkeyPatch, text: str, shares: bool
) -> None:
    monkeypatch.setenv("ZERORUN_SHARE_GPUS", text)
    assert environment.may_share_gpus() == shares
