"""Every command in the documents and in the headings of the examples, run as it is written, here or
in test_examples.py and test_deepspeed_curves.py.

They run in the order in which they are written, in a folder with the files that they name.
Training is cut short by options behind the command. On a machine with GPUs they run CPU ranks all
the same.
"""

import re
import shutil
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
import test_deepspeed_curves
import test_examples
from ranks import shell

ROOT = Path(__file__).resolve().parents[2]
# README first, then the pages to start with, whose files the commands of other pages read.
PAGES = sorted(ROOT.glob("docs/*.md"), key=lambda path: (path.stem[:6] != "start_", path.name))
DOCUMENTS = [ROOT / "README.md", *PAGES]
DEV = (ROOT / "dev").read_text()
# Those of examples/steps and examples/recipes are run by test_steps.py.
EXAMPLES = sorted(path for path in ROOT.glob("examples/[mp]*/*") if path.suffix in {".py", ".cc"})
STARTS = ("zerorun ", "python -m zerorun", "ZERORUN_COMPAT=", "deepspeed ", "torchrun ")
# Commands of other lines build or install zerorun.
BUILDS = (
    "./dev ",
    "apt-get install ",
    "cmake ",
    "pip install '.[torch]'",
    "pip install .",
    "pip install dist/",
    "scripts/gpu_",
    "ZERORUN_CUDA_ARCHITECTURES=",
)
SHORT = " --model nano --steps 1 --seq_len 16 --sample_tokens 1"
ONLY_ON_GPUS = "--tf32"

# What users have: a folder with these files, and those that README.md shows.
MODEL = '{"model_type": "gpt2", "n_layer": 2, "n_head": 2, "n_embd": 64, "vocab_size": 256}'
SCRIPT = "import os, sys\nprint('rank', os.environ['RANK'], sys.argv[1:])\n"


def blocks_of_document(path: Path) -> list[tuple[str, str]]:
    """Its fenced blocks, each with its language."""
    return re.findall(r"^```(\w*)\n(.*?)^```", path.read_text(), re.DOTALL | re.MULTILINE)


def file_of_readme(start: str) -> str:
    blocks = [block for _, block in blocks_of_document(ROOT / "README.md")]
    return next(block for block in blocks if block.startswith(start))


def commands_of_document(path: Path) -> Iterator[str]:
    """The lines of its blocks without a language or with `sh`."""
    for language, block in blocks_of_document(path):
        if language in {"", "sh"}:
            yield from block.replace("\\\n", " ").splitlines()


def commands_of_example(path: Path) -> Iterator[str]:
    """The lines of its heading: a docstring, or comments."""
    text = path.read_text()
    heading = text.split('"""')[1] if path.suffix == ".py" else re.match(r"(//.*\n)+", text)[0]
    heading = heading.encode().decode("unicode_escape") if path.suffix == ".py" else heading
    yield from re.sub(r"^// *", "", heading, flags=re.MULTILINE).replace("\\\n", " ").splitlines()


def without_comment(line: str) -> str:
    return " ".join(re.sub(r"\s+#.*", "", line).split())


def all_commands() -> dict[str, Path]:
    found: dict[str, Path] = {}
    for path in DOCUMENTS:
        for line in commands_of_document(path):
            if line.startswith(STARTS):
                found.setdefault(without_comment(line), path)
    for path in EXAMPLES:
        for line in commands_of_example(path):
            if line.startswith(STARTS):
                found.setdefault(without_comment(line), path)
    return found


COMMANDS = all_commands()
RUN_ELSEWHERE = {*test_examples.COMMANDS, *test_deepspeed_curves.COMMANDS}


@pytest.fixture(scope="module")
def folder(build: Path) -> Path:
    """On a real disk, since one of the commands measures it."""
    folder = build.parent / "documented"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(ROOT / "examples" / "python", folder)
    shutil.copytree(ROOT / "examples" / "python", folder / "examples" / "python")
    (folder / "my").mkdir()
    (folder / "my_text").mkdir()
    (folder / "my_text" / "a.txt").write_text("All work and no play makes a dull text.\n" * 200)
    (folder / "ds_config.json").write_text(file_of_readme('{\n  "train_micro_batch'))
    (folder / "hosts").write_text("localhost slots=2\n")
    (folder / "config.json").write_text(MODEL)
    (folder / "hello.py").write_text(file_of_readme("# hello.py"))
    shutil.copy(folder / "accelerate_zero3.yaml", folder / "accelerate.yaml")
    for name in ("my_script.py", "train.py", "my/package.py"):
        (folder / name).write_text(SCRIPT)
    # The page about Trainer: what its reader has.
    shutil.copy(folder / "trainer.py", folder / "hf_trainer.py")
    page = blocks_of_document(ROOT / "docs" / "start_trainer.md")
    (folder / "hf_config.json").write_text(next(block for kind, block in page if kind == "json"))
    (folder / "checkpoints").symlink_to(folder / "hf_out" / "checkpoint-2")
    (folder / "my_program").write_text("#!/bin/sh\necho rank $RANK\n")
    (folder / "my_program").chmod(0o755)
    (folder / "mlp").symlink_to(build / "libexec" / "zerorun" / "mlp")
    return folder


def test_the_documents_have_commands() -> None:
    assert len(COMMANDS) >= 25
    assert COMMANDS.keys() >= RUN_ELSEWHERE
    for path in (ROOT / "README.md", ROOT / "docs" / "python.md", *EXAMPLES):
        assert path in COMMANDS.values(), path


def test_other_lines_of_shell_blocks_build_zerorun() -> None:
    lines = [line for path in DOCUMENTS for line in commands_of_document(path)]
    shell = [line for line in lines if re.match(r"[\w./=-]+ +[\w./-]", line)]
    known = (*STARTS, *BUILDS)
    assert [line for line in shell if not line.startswith(known)] == []


def test_the_page_about_installing_lists_what_dev_installs_to_build() -> None:
    lines = commands_of_document(ROOT / "docs" / "install.md")
    listed = next(line for line in lines if line.startswith("apt-get install ")).split()[2:]
    arrays = re.findall(
        r"^readonly (?:run|build)_packages=\((.*?)\)", DEV, re.DOTALL | re.MULTILINE
    )
    installed = {word for array in arrays for word in array.split() if word[0] not in '"$'}
    # What users have, and what only tests and benchmarks need.
    unlisted = {"ccache", "git", "python3", "libgtest-dev", "libgmock-dev", "libbenchmark-dev"}
    assert set(listed) == installed - unlisted


@pytest.mark.parametrize("command", [c for c in COMMANDS if c not in RUN_ELSEWHERE])
def test_a_command_runs_as_it_is_written(
    command: str, folder: Path, build: Path, request: pytest.FixtureRequest
) -> None:
    python: dict[str, str] = request.getfixturevalue("torch_python")
    if "accelerate" in command or "trainer.py" in command:
        of_hugging_face = request.getfixturevalue("transformers_python")
        # zerorun.compat has to come before what looks for DeepSpeed.
        python = python if "zerorun.compat" in command else of_hugging_face
    line = command.replace("bench nvme /disk", f"bench nvme {folder} --gib 0.25")
    if "hf_trainer.py" in command:
        line = line.replace("ds_config.json", "hf_config.json")
    if "trainer.py" in command:
        line += " --output_dir hf_out --max_steps 2 --save_steps 2"
    if re.search(r"^zerorun .*\btrain\b(?!\.)", command):
        line += SHORT
    job = shell(build, line, folder, **python)
    if ONLY_ON_GPUS in command:
        assert "it needs --accelerator cuda" in job.stderr
        return
    assert job.returncode == 0, textwrap.indent(job.stdout[-2000:] + job.stderr[-4000:], "  ")
