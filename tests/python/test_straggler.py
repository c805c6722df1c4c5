"""Jobs with a slow rank: who is named, with which cause, and after how many steps."""

import torch
from metrics_files import write
from prelude import *
from zerorun.metrics import meter
from zerorun.report.page import findings
from zerorun.report.reader import read_run
from zerorun.top import latest, table

# Steps of 20 ms. Rank 1 takes 130 ms longer for data or computation, or its disk is slow: more than
# other work on the machine takes from a rank.
PROGRAM = """
import json, os, sys, time
import torch

api, slow, folder = sys.argv[1:]
parts = 2 if "accumulated" in slow else 1
slow = slow if os.environ["RANK"] == "1" else ""

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 8)
    def forward(self, x):
        end = time.perf_counter() + (0.15 if slow == "compute" else 0.02)
        while time.perf_counter() < end:
            time.sleep(0.001)
        return self.layer(x).square().sum()

class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 1000
    def __getitem__(self, index):
        time.sleep(0.13 / parts if slow.startswith("data") else 0.0)
        return torch.ones(8)

model = Model()
if api == "shard":
    import zerorun
    engine = zerorun.shard(model, stage=2, optimizer=torch.optim.SGD(model.parameters(), lr=1e-3))
    loader = torch.utils.data.DataLoader(Data(), batch_size=1)
else:
    import deepspeed
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "zero_optimization": {"stage": 2},
        "optimizer": {"type": "AdamW"},
        "zerorun": {"metrics": os.path.join(folder, "m.jsonl")},
    }
    engine, _, loader, _ = deepspeed.initialize(
        model=model, model_parameters=model.parameters(), config=config, training_data=Data()
    )
engines = [engine]
if "two engines" in sys.argv[2]:
    engines.append(zerorun.shard(Model(), stage=2, optimizer=torch.optim.SGD))
batches = iter(loader)
first = None
for step in range(1, 51):
    for _ in range(parts):
        batch = next(batches)
        for one in engines:
            one.backward(one(batch))
    for one in engines:
        one.step()
    if os.environ["RANK"] == "0" and first is None and "straggler" in engine.metrics():
        first = engine.metrics()["straggler"] | {"step": step}
    if step % 8 == 0 and sys.argv[2] == "save":
        engine.save_checkpoint(os.path.join(folder, "saved"))
if os.environ["RANK"] == "0":
    print(json.dumps(first))
"""
# Rank 1's disk takes 0.4 s for each file.
SLOW_DISK = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <unistd.h>
int fsync(int file) {
  const char *rank = getenv("RANK");
  if (rank != NULL && rank[0] == '1') usleep(400000);
  return ((int (*)(int))dlsym(RTLD_NEXT, "fsync"))(file);
}
"""
SLOW = ("data", "compute", "save", "nobody")
JOBS = [(api, slow) for api in ("deepspeed", "shard") for slow in SLOW]
# The loader is called between two backwards, and two engines see it: one line.
JOBS += [("shard", "data, accumulated"), ("shard", "data, two engines")]


@each("api slow", *[pytest.param(*job, marks=pytest.mark.xdist_group(job[0])) for job in JOBS])
def test_a_slow_rank_is_named_with_its_cause(tmp_path: Path, api: str, slow: str) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    variables = torch_python()
    if slow == "save":
        source, library = tmp_path / "disk.c", tmp_path / "disk.so"
        source.write_text(SLOW_DISK)
        output_of("cc", "-shared", "-fPIC", "-o", library, source, "-ldl")
        variables = {"LD_PRELOAD": str(library)}
    job = passed(launch(2, "--no_local_rank", program, api, slow, tmp_path, **variables))
    found = json.loads(job.stdout.splitlines()[-1])  # within 50 steps
    if slow == "nobody":
        assert found is None
        assert "waited for" not in job.stderr
        return
    assert (found["rank"], found["cause"]) == (1, slow.partition(",")[0])
    assert found["share"] > 0.1
    assert job.stderr.count("is waited for") == 1  # once a minute
    assert f"{found['text']}; see docs/slow.md" in job.stderr
    if api == "deepspeed":
        path = tmp_path / "m.jsonl"
        assert any("rank 1 (host " in line for line in table(latest(path), "m"))
        assert findings(read_run(path))[0].startswith("Rank 1 (host ")


@each("device", "cpu", "cuda")
def test_on_a_gpu_time_between_calls_is_not_data(monkeypatch: Patch, device: str) -> None:
    """There a program may wait for the GPU, as in ``loss.item()``."""
    entered = []
    monkeypatch.setattr(meter, "captures", lambda: True)  # no events: there is no GPU
    monkeypatch.setattr(meter, "EngineTimes", mock.MagicMock())
    meter.EngineTimes.return_value.figures.enter = lambda part: entered.append(part) or part
    monkeypatch.setattr(meter._C, "EngineFigures", mock.MagicMock())
    watched = meter.StepMeter(mock.MagicMock(), torch.nn.Linear(1, 1), 1, torch.device(device))
    for watch in (watched.forward, watched.backward, watched.step):
        with watch:
            pass
    between = meter.DATA if device == "cpu" else meter.COMPUTE
    assert entered[1::2] == [meter.COMPUTE, between, between]


def test_top_and_report_show_any_text_as_one_line(tmp_path: Path) -> None:
    straggler = {"rank": 1, "text": "rank 1 (host b) is waited for:\n 12 % of the time"}
    path = write(tmp_path / "m.jsonl", straggler=straggler, step_shares={"waited": 0.25})
    lines = table(latest(path), "m")
    assert lines[-1] == "rank 1 (host b) is waited for: 12 % of the time"
    assert "waited" in lines[1].split()
    assert "25%" in lines[2].split()
    assert "in 10 of 10 steps" in findings(read_run(path))[0]
    for other in (1, None, {}, {"text": 3}, [1]):
        path = write(tmp_path / "other.jsonl", straggler=other, step_shares=other)
        assert len(table(latest(path), "m")) == 3
        assert not any("waited for: " in finding for finding in findings(read_run(path)))
