"""The environment variables that the package reads itself."""

import os
import sys
from collections.abc import Callable, Sequence

import pytest
import torch
import zerorun
from ranks import ran
from zerorun import device, environment


@pytest.mark.parametrize(
    ("name", "text", "read"),
    [
        ("LOCAL_RANK", "", environment.local_rank),
        ("LOCAL_RANK", "-1", environment.local_rank),
        ("LOCAL_RANK", "1.5", environment.local_rank),
        ("LOCAL_RANK", "٣", environment.local_rank),
        ("RANK", "one", environment.rank),
    ],
)
def test_a_rank_that_is_no_number_is_an_error(
    monkeypatch: pytest.MonkeyPatch, name: str, text: str, read: Callable[[], object]
) -> None:
    monkeypatch.setenv(name, text)
    with pytest.raises(zerorun.ConfigError, match=f"{name} is '{text}', expected a number"):
        read()


@pytest.mark.parametrize(("text", "shares"), [("", False), ("0", False), ("1", True)])
def test_gpus_are_shared_when_asked(
    monkeypatch: pytest.MonkeyPatch, text: str, shares: bool
) -> None:
    monkeypatch.setenv("ZERORUN_SHARE_GPUS", text)
    assert environment.may_share_gpus() == shares


PLACE = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
STEP = {
    "SLURM_JOB_ID": "9",
    "SLURM_STEP_ID": "1",
    "SLURM_STEP_NODELIST": "n[1-2]",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
}


@pytest.fixture
def task_of_srun(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in PLACE:
        monkeypatch.setenv(name, "")  # so that it is restored afterwards
        monkeypatch.delenv(name)
    for name, value in STEP.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize(("asked", "ports"), [(None, range(15000, 30000)), (1234, [1234])])
def test_tasks_of_srun_are_ranks_for_pytorch_too(
    task_of_srun: None, asked: int | None, ports: Sequence[int]
) -> None:
    assert environment.adopt_scheduler(port=asked)
    found = [os.environ[name] for name in PLACE]
    assert found[:5] == ["3", "4", "1", "2", "n1"]
    assert int(found[5]) in ports
    assert environment.local_rank() == 1


def test_a_batch_script_is_one_rank(task_of_srun: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_STEP_ID")
    assert not environment.adopt_scheduler()
    assert (environment.local_rank(), environment.rank()) == (None, 0)
    assert "RANK" not in os.environ


OLD = "the driver is too old"


@pytest.mark.parametrize(
    ("pytorch", "visible", "zerorun_says", "error"),
    [
        ((True, "12.8"), "0,1", "", None),
        ((True, "12.8"), "", OLD, "PyTorch sees a GPU that zerorun cannot use: "),
        ((True, "12.8"), "0", OLD, f"{OLD}; zerorun --accelerator"),
        ((False, "12.8"), "0", OLD, "CUDA_VISIBLE_DEVICES=0, but PyTorch"),
        ((False, "12.8"), "0", "", r"sees no GPU: torch.cuda.init\(\) says why"),
        ((False, "12.8"), "", OLD, None),  # CPU ranks
        ((False, "12.8"), "-1", OLD, None),
        ((False, None), "", "", None),
    ],
)
def test_a_gpu_that_cannot_be_used_is_no_reason_to_train_on_the_cpu(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    pytorch: tuple[bool, str | None],
    visible: str,
    zerorun_says: str,
    error: str | None,
) -> None:
    sees, built_for = pytorch
    monkeypatch.setattr(torch.cuda, "is_available", lambda: sees)
    monkeypatch.setattr(torch.version, "cuda", built_for)
    monkeypatch.setattr(zerorun._C, "why_no_cuda", lambda: zerorun_says)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    decide = device._why_no_gpu.__wrapped__
    if error is None:
        assert bool(decide()) is not sees
    else:
        with pytest.raises(zerorun.DeviceError, match=error):
            decide()
    assert not caplog.records


def test_a_pytorch_without_cuda_says_that_it_leaves_gpus_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    assert device._why_no_gpu.__wrapped__()
    assert "training on the CPU: CUDA_VISIBLE_DEVICES=0,1, but PyTorch" in caplog.text


@pytest.mark.parametrize(
    ("visible", "count", "chosen"),
    [("0", 1, 0), ("GPU-ab", 1, 0), ("4,5,6,7", 4, 2), (None, 1, None), ("0,1", 2, None)],
)
def test_the_only_gpu_that_a_scheduler_shows_is_the_ranks(
    monkeypatch: pytest.MonkeyPatch, visible: str | None, count: int, chosen: int | None
) -> None:
    monkeypatch.setattr(device, "_why_no_gpu", lambda: "")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.delenv("ZERORUN_SHARE_GPUS", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setenv("LOCAL_RANK", "2")
    if chosen is None:
        with pytest.raises(zerorun.ConfigError, match="start at most one rank per GPU"):
            device.local_device()
    else:
        assert device.local_device() == torch.device("cuda", chosen)


def test_nccl_launches_in_the_programs_order_unless_the_user_chose() -> None:
    """The variable is there as soon as the package is."""
    show = "import os, zerorun; print(os.environ['NCCL_LAUNCH_ORDER_IMPLICIT'])"
    others = {name: value for name, value in os.environ.items() if not name.startswith("NCCL_")}
    others["PYTHONPATH"] = os.pathsep.join(sys.path)
    for given, expected in ({}, "1"), ({"NCCL_LAUNCH_ORDER_IMPLICIT": "0"}, "0"):
        job = ran([sys.executable, "-c", show], env=others | given)
        assert job.stdout.strip() == expected, job.stderr
