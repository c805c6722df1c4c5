"""cases/bad_input.py on one and on two ranks, and jobs that end."""

from pathlib import Path

from ranks import launch

FAILS = """
import os, torch, zerorun
torch.set_num_threads(1)
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)
    def forward(self, x):
        if os.environ["RANK"] == "1":
            raise ValueError("bad batch")
        return self.layer(x)
model = Model()
config = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3}}
engine, *_ = zerorun.initialize(model, torch.optim.AdamW(model.parameters()), config=config)
engine.backward(engine(torch.ones(1, 4)).sum())
engine.step()
"""


def test_an_exception_in_one_ranks_forward_ends_the_job(
    build: Path, torch_python: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "fails.py").write_text(FAILS)
    job = launch(build, 2, "--no_local_rank", tmp_path / "fails.py", **torch_python)
    assert job.returncode == 1
    assert "ValueError: bad batch" in job.stderr
    assert "rank 1 of 2" in job.stderr.splitlines()[-1]


def test_half_a_job_is_an_error(build: Path, torch_python: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "half.py").write_text(
        "import os, torch, zerorun\n"
        "del os.environ['RANK']\n"
        "model = torch.nn.Linear(1, 1)\n"
        "try: zerorun.initialize(model, config={'train_batch_size': 2})\n"
        "except zerorun.ConfigError as error: print(error)\n"
    )
    job = launch(build, 2, "--no_local_rank", tmp_path / "half.py", **torch_python)
    assert job.stdout.count("WORLD_SIZE is set but RANK is not") == 2, job.stdout + job.stderr
