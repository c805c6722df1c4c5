"""The examples, by the commands of their headings: the scripts in examples/python for plain PyTorch
on two CPU ranks, examples/steps one after the other, and examples/recipes; and that what is in
bench/ starts.

tests/ecosystem/test_ecosystem.py runs recipes that need more packages.
"""

from prelude import *

STEPS, RECIPES = ROOT / "examples" / "steps", ROOT / "examples" / "recipes"
LOOP = "zerorun --num_gpus 2 loop.py --stage 3"
DDP = [
    "zerorun --nproc_per_node 2 ddp.py",
    "zerorun --nproc_per_node 2 --use_env ddp.py",
    "zerorun --nproc_per_node 2 ddp.py --sharded",
]
COMMANDS = [LOOP, *DDP]
BENCHMARKS = [f for f in sorted((ROOT / "bench").rglob("*.py")) if "__main__" in f.read_text()]


def losses(text: str) -> list[float]:
    return [float(loss) for loss in re.findall(r"loss (\S+)", text)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return shutil.copytree(ROOT / "examples" / "python", tmp_path / "scripts")


def test_the_plain_loop_is_the_same_with_and_without_shards(folder: Path) -> None:
    sharded = passed(shell(LOOP, folder)).stdout  # a Python of its own
    whole = passed(shell(LOOP.replace("3", "0"), folder, **torch_python())).stdout
    assert sharded == whole
    first, *_, last = losses(whole)
    assert last < 0.6 * first


def test_a_ddp_script_with_and_without_local_rank_and_sharded(folder: Path) -> None:
    outputs = [passed(shell(line, folder, **torch_python())).stdout for line in DDP]
    assert outputs[0] == outputs[1] == outputs[2]
    first, _, last = losses(outputs[0])
    assert last < 0.3 * first


def command_of(path: Path) -> list[str]:
    return re.findall(r"^(?:zerorun|python) .*$", path.read_text().split('"""')[1], re.MULTILINE)


@pytest.fixture(scope="module")
def printed() -> dict[str, str]:
    """What each step printed, in a folder on a real disk."""
    folder = BUILD.parent / "steps"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(STEPS, folder)
    found = {}
    for path in sorted(STEPS.glob("step*.py")):
        for line in command_of(path):
            job = passed(shell(line, folder, **transformers_python()))
            found[path.stem] = job.stdout
    return found


def test_sharding_and_offloading_change_no_loss(printed: dict[str, str]) -> None:
    first = losses(printed["step1_ddp"])
    assert len(first) == 4
    assert first[-1] < first[0]
    for step in ("step2_zero1", "step3_stage3", "step4_offload"):
        assert losses(printed[step]) == pytest.approx(first, abs=2e-4), step


def test_other_ranks_go_on_where_the_checkpoint_ended(printed: dict[str, str]) -> None:
    assert re.findall(r"step (\d+)", printed["step5_resume"]) == ["25", "30"]
    assert max(losses(printed["step5_resume"])) < losses(printed["step1_ddp"])[0]


def test_transformers_generates(printed: dict[str, str]) -> None:
    assert printed["step6_generate"].startswith("def add_argument(self, ")


def test_zero1_is_two_lines_more_than_ddp() -> None:
    ddp, zero1 = (
        (STEPS / name).read_text().split('"""')[2].splitlines()
        for name in ("step1_ddp.py", "step2_zero1.py")
    )
    assert [line for line in zero1 if line not in ddp] == [
        "import zerorun",
        "optimizer = zerorun.ShardedOptimizer(optimizer)",
    ]
    assert [line for line in ddp if line not in zero1] == []


def test_the_notebook_has_the_steps() -> None:
    notebook = json.loads((STEPS / "steps.ipynb").read_text())
    code = "".join("".join(c["source"]) for c in notebook["cells"] if c["cell_type"] == "code")
    for text in ("notebook_launcher(", "ShardedOptimizer(", "load_checkpoint(", "from_pretrained("):
        assert text in code
    assert all(not cell.get("outputs") for cell in notebook["cells"])


def test_the_policy_learns(tmp_path: Path) -> None:
    line = f"cp {RECIPES}/rl_loop.py . && {command_of(RECIPES / 'rl_loop.py')[0]}"
    job = passed(shell(line, tmp_path, **torch_python()))
    rewards = [float(reward) for reward in re.findall(r"reward (\S+)", job.stdout)]
    assert rewards[-1] > 0.9 > rewards[0]


def test_the_script_for_slurm_starts_a_launcher_on_each_host(tmp_path: Path) -> None:
    """With a Slurm of two functions in place of the real one."""
    line = f"""
export SLURM_NNODES=2 SLURM_JOB_NODELIST=a,b
scontrol() {{ echo a; echo b; }}
srun() {{ shift; SLURM_NODEID=1 "$@"; }}
exec() {{ zerorun --dry_run "${{@:2}}"; }}; export -f exec
. {RECIPES}/two_hosts.slurm
"""
    job = passed(shell(line, tmp_path))
    assert {"CROSS_RANK=1", "CROSS_SIZE=2"} <= set(job.stdout.split())


@each("program", *BENCHMARKS, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_benchmark_tells_its_options(program: Path, tmp_path: Path) -> None:
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    python = Path(torch_python()["VIRTUAL_ENV"]) / "bin" / "python"
    job = ran([python, program, "--help"], cwd=tmp_path, env=variables, timeout=60)
    assert (job.returncode, job.stderr) == (0, "")
    assert job.stdout.startswith("usage: ")
