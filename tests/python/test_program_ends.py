"""Programs that fail, stand still or end: what is told, and what is left."""

import torch
import zerorun
from prelude import *
from zerorun import _C

Run = Callable[..., Ended]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    def run(text: str, ranks: int = 2, *options: str) -> Ended:
        (tmp_path / "program.py").write_text(text)
        words = [*options, "--no_local_rank", "program.py"]
        return launch(ranks, *words, cwd=tmp_path, **torch_python())

    return run


STEPS = """
import os, threading, torch, zerorun

def wait_for_a_lock_that_nobody_gives_back():
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()

class Model(torch.nn.Linear):
    def forward(self, x):
        if step == 2 and os.environ["RANK"] == "1":
            {}
        return super().forward(x)

config = {{
    "train_micro_batch_size_per_gpu": 1,
    "optimizer": {{"type": "AdamW"}},
    "zero_optimization": {{"stage": 3}},  # so that the other ranks wait in a gather
}}
engine, *_ = zerorun.initialize(model=Model(4, 4), config=config)
for step in range(3):
    engine.backward(engine(torch.ones(1, 4)).sum())
    engine.step()
"""


def test_an_exception_in_one_ranks_forward_ends_the_job(run: Run) -> None:
    job = run(STEPS.format("raise ValueError('bad batch')"))
    assert job.returncode == 1
    assert "ValueError: bad batch" in job.stderr
    assert "rank 1 of 2" in job.stderr.splitlines()[-1]


RESET = """
import torch, zerorun

model = torch.nn.Linear(4, 4)
optimizer = torch.optim.{}(model.parameters(), lr=0.1)
engine = zerorun.shard(model, stage={}, optimizer=optimizer)
for step in range(2):
    if step == 1 and engine.communicator.rank == 0:
        optimizer.state = {{}}
    engine.backward(engine(torch.ones(1, 4)).sum())
    engine.step()
"""
READ = """
import os, torch, zerorun

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(4, 4)
        if os.environ["RANK"] == "0":
            self.inner.weight.sum()
        self.outer = torch.nn.Linear(4, 4)

with zerorun.zero.Init():
    Model()
"""


@pytest.mark.parametrize("stage", [0, 3])
@pytest.mark.parametrize("kind", ["SGD", "AdamW"])
def test_states_that_one_rank_replaces_alone_are_an_error(run: Run, kind: str, stage: int) -> None:
    job = run(RESET.format(kind, stage))
    assert job.returncode == 1
    assert "optimizer.state begins anew, on every rank" in job.stderr, job.stderr


def test_a_read_under_init_on_one_rank_alone_is_an_error(run: Run) -> None:
    job = run(READ)
    assert job.returncode == 1
    assert "read of parameter 0 under zero.Init" in job.stderr, job.stderr


def test_half_a_job_is_an_error(run: Run) -> None:
    job = run("import os\ndel os.environ['RANK']\n" + STEPS.format("pass"))
    assert "ConfigError: WORLD_SIZE is set but RANK is not" in job.stderr


def test_the_report_has_the_python_stack_of_the_rank_that_hangs(run: Run, tmp_path: Path) -> None:
    stuck = STEPS.format("wait_for_a_lock_that_nobody_gives_back()")
    assert run(stuck, 3, "--log_dir", "logs", "--comm_timeout", "4").returncode == 1
    logs = "".join(path.read_text() for path in (tmp_path / "logs").glob("rank*.log"))
    assert logs.count("the job stands still") == 1
    assert "wait_for_a_lock_that_nobody_gives_back" in logs
    report = json.loads((tmp_path / "logs" / "stall.json").read_text())
    waiting, stuck, _ = report["ranks"]
    assert [rank["waits_for"] for rank in report["ranks"]] == [1, None, 1]
    assert "bucket" in waiting["label"]
    assert any("wait_for_a_lock" in line for line in stuck["python_stack"])
    assert f"gdb -p {stuck['pid']}" in logs


HANDLERS = """
import ctypes, threading
from pathlib import Path
from zerorun import _C
from zerorun.communicator import answer_stack_requests

class Stack(ctypes.Structure):
    _fields_ = [("at", ctypes.c_void_p), ("flags", ctypes.c_int), ("nbytes", ctypes.c_size_t)]

def has_handler():
    status = Path("/proc/self/status").read_text()
    caught = int(status.split("SigCgt:")[1].split()[0], 16)
    return bool(caught >> (_C.stack_requests()[0] - 1) & 1)

def has_stack():
    stack = Stack()
    assert ctypes.CDLL(None).sigaltstack(None, ctypes.byref(stack)) == 0
    return stack.at is not None

thread = threading.Thread(target=answer_stack_requests)
thread.start()
thread.join()
print("after a thread:", has_handler())
answer_stack_requests()
print("after the main thread:", has_handler(), has_stack())
"""


def test_the_handler_has_a_stack_of_its_own(run: Run) -> None:
    """A rank may be in a function that uses a block of the heap as its stack."""
    told = passed(run(HANDLERS, 1)).stdout
    assert told == "after a thread: False\nafter the main thread: True True\n"


def test_a_rank_that_ends_lets_its_peers_threads_run() -> None:
    """It waits for a reduction that its peer takes part in later."""
    store = _C.make_memory_store()
    settings = {"train_batch_size": 2, "zero_optimization": {"stage": 2, "overlap_comm": True}}
    config = zerorun.config.parse(settings).config
    ending = threading.Event()

    def train(rank: int) -> list[list[float]]:
        """What it holds of the gradient."""
        try:
            communicator = _C.connect(rank, 2, store, "threads", 10.0)
            spec = _C.ParameterSpec("weight", [512], "layer")
            engine = _C.Engine(config, communicator, [spec], [_C.ParameterGroup()])
            collector = _C.GradientCollector(engine)
            weight = torch.zeros(512)
            weight.grad = torch.ones(512)
            if rank == 1:
                ending.wait()
            collector.hook(0)(weight)
            found = []
            if rank == 1:
                engine.end_micro_step()
                found = [torch.from_dlpack(p.grad).tolist() for p in engine.state_intervals()]
            ending.set()
            del collector
            engine.close()
            return found
        finally:
            ending.set()

    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(train, range(2))) == [[], [[2.0] * 256]]  # the sum over the ranks


PROGRAM = """
import sys
import torch, zerorun

class Held:
    '''In a cycle, as trainers and their callbacks are.'''

    def __init__(self):
        self.own = self
        self.file = open(sys.argv[1], "w")
        self.file.write("what it has written")

    def __del__(self):
        print("taken apart")

held = Held()
zerorun.shard(torch.nn.Linear(2, 2), stage=1)
if sys.argv[2] == "interrupted":
    raise KeyboardInterrupt
"""

WITHOUT_ROOM = """
import resource, sys
import torch, zerorun

model = torch.nn.Linear(400, 400)
optimizer = torch.optim.AdamW(model.parameters())
engine = zerorun.initialize(model, optimizer, config={"train_micro_batch_size_per_gpu": 1})[0]
resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, resource.RLIM_INFINITY))
engine.save_checkpoint(sys.argv[1], "new", blocking=False)
print("the program's end")
"""


@each("how", "interrupted", "ends")
def test_a_program_that_ends_is_taken_apart_and_files_are_written(tmp_path: Path, how: str) -> None:
    """Which takes PyTorch's modules a second of a core."""
    script, written = tmp_path / "program.py", tmp_path / "written.txt"
    script.write_text(PROGRAM)
    result = ran([sys.executable, script, written, how], env=environment())
    assert written.read_text() == "what it has written", result.stderr
    assert ("taken apart" in result.stdout) == (how == "ends")
    codes = {-signal.SIGINT, 128 + signal.SIGINT} if how == "interrupted" else {0}
    assert result.returncode in codes, result.stderr
    assert ("KeyboardInterrupt" in result.stderr) == (how == "interrupted")


@each("last told", ("", "a checkpoint could not be saved: "), ("engine.destroy()", "in destroy"))
def test_a_save_that_fails_after_the_end_is_an_error(tmp_path: Path, last: str, told: str) -> None:
    """Python would end with 0, and the next job would miss the checkpoint."""
    program = [sys.executable, "-c", WITHOUT_ROOM + last, str(tmp_path / "run")]
    result = ran(program, env=environment())
    assert result.returncode == 1, result.stderr
    assert result.stdout == "the program's end\n"
    assert told in result.stderr
    assert "File too large" in result.stderr
    assert not (tmp_path / "run" / "latest").exists()
