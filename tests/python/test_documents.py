"""The documents: the length, links and places of pages; commands, which run as they are written;
and the page Troubles, which has an entry for every error text.

The commands of the documents and of the headings of examples run here or in test_examples.py and
test_deepspeed_curves.py, in the order in which they are written, in a folder with the files that
they name. Training is cut short by options behind the command. On a machine with GPUs they run CPU
ranks all the same.
"""

import sys
import textwrap

import test_deepspeed_curves
import test_examples
from prelude import *
from zerorun import explain

sys.path.insert(0, str(ROOT / "scripts"))
import command_page
import error_texts

NAMES = ("README", "ARCHITECTURE", "CHANGELOG", "CONTRIBUTING", "SECURITY")
PAGES = [*(ROOT / f"{name}.md" for name in NAMES), *sorted((ROOT / "docs").glob("*.md"))]
# Pages in which one looks something up.
REFERENCES = {"command_line", "config", "decisions", "deepspeed_names", "troubles", "CONTRIBUTING"}
README_LINES, PAGE_LINES, EXAMPLE_LINES = 120, 250, 60


def without_code(path: Path) -> str:
    text = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"`[^`\n]*`(?!\])", "", text)


def anchors_of(path: Path) -> set[str]:
    """As GitHub and the site make them of headings."""
    found: set[str] = set(re.findall(r'<a id="([^"]+)">', path.read_text()))
    text = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.DOTALL | re.MULTILINE)
    for heading in re.findall(r"^#+ (.*)$", text, re.MULTILINE):
        plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower()
        slug = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        number = next(n for n in range(99) if (f"{slug}-{n}" if n else slug) not in found)
        found.add(f"{slug}-{number}" if number else slug)
    return found


@each("page", *PAGES, ids=lambda page: page.stem)
def test_links_lead_somewhere(page: Path) -> None:
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", without_code(page)):
        file, _, anchor = target.partition("#")
        if re.match(r"[a-z]+:", target):
            continue
        path = (page.parent / file).resolve() if file else page
        if not path.exists() or (anchor and anchor not in anchors_of(path)):
            broken.append(target)
    assert broken == []


def test_pages_are_short() -> None:
    lengths = {page.stem: len(page.read_text().splitlines()) for page in PAGES}
    assert lengths.pop("README") <= README_LINES
    long = {name for name, lines in lengths.items() if lines > PAGE_LINES}
    assert long <= REFERENCES


def test_examples_are_short() -> None:
    files = [*ROOT.glob("examples/[ps]*/*.py"), *ROOT.glob("examples/recipes/*")]
    assert len(files) > 15
    too_long = {f.name for f in files if len(f.read_text().splitlines()) > EXAMPLE_LINES}
    # The model, which no step changes; and what accelerate and peft ask of a program, in one.
    assert too_long <= {"gpt.py", "accelerate_lora.py"}


def test_every_page_is_on_the_site_once() -> None:
    shown = re.findall(r": (\w+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    hooks = (ROOT / "scripts" / "site_hooks.py").read_text()
    of_root = re.findall(r'^ {4}"\w+\.md": "(\w+\.md)"', hooks, re.MULTILINE)
    own = [page.name for page in PAGES if page.parent == ROOT / "docs"]
    assert sorted(shown) == sorted([*own, *of_root])


def test_readme_leads_to_every_page_within_two_clicks() -> None:
    def linked(path: Path) -> set[Path]:
        links = re.findall(r"\]\(([^)\s#]+\.md)", path.read_text())
        return {(path.parent / link).resolve() for link in links}

    first = linked(ROOT / "README.md")
    assert set(PAGES[1:]) <= first.union(*map(linked, first))


def test_the_page_of_commands_is_what_the_commands_say() -> None:
    page = command_page.page(str(BUILD / "bin" / "zerorun"))
    assert page == (ROOT / "docs" / "command_line.md").read_text(), (
        "python scripts/command_page.py build/release/bin/zerorun > docs/command_line.md"
    )


# --- commands ---

# README first, then the pages to start with, whose files the commands of other pages read.
DOCUMENTS = [ROOT / "README.md"]
DOCUMENTS += sorted(ROOT.glob("docs/*.md"), key=lambda path: (path.stem[:6] != "start_", path.name))
DEV = (ROOT / "dev").read_text()
# Those of examples/steps and examples/recipes are run by test_examples.py, too.
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
def folder() -> Path:
    """On a real disk, since one of the commands measures it."""
    folder = BUILD.parent / "documented"
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
    (folder / "mlp").symlink_to(BUILD / "libexec" / "zerorun" / "mlp")
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
    arrays = re.findall(r"^readonly (?:run|build)_packages=\((.*?)\)", DEV, re.S | re.M)
    installed = {word for array in arrays for word in array.split() if word[0] not in '"$'}
    # What users have, and what only tests and benchmarks need.
    unlisted = {"ccache", "git", "python3", "libgtest-dev", "libgmock-dev", "libbenchmark-dev"}
    assert set(listed) == installed - unlisted


@each("command", *[c for c in COMMANDS if c not in RUN_ELSEWHERE])
def test_a_command_runs_as_it_is_written(command: str, folder: Path) -> None:
    of_hugging_face = "accelerate" in command or "trainer.py" in command
    python = transformers_python() if of_hugging_face else torch_python()
    if "zerorun.compat" in command:
        python = torch_python()  # it has to come before what looks for DeepSpeed
    line = command.replace("bench nvme /disk", f"bench nvme {folder} --gib 0.25")
    if "hf_trainer.py" in command:
        line = line.replace("ds_config.json", "hf_config.json")
    if "trainer.py" in command:
        line += " --output_dir hf_out --max_steps 2 --save_steps 2"
    if re.search(r"^zerorun .*\btrain\b(?!\.)", command):
        line += SHORT
    job = shell(line, folder, **python)
    if ONLY_ON_GPUS in command:
        assert "it needs --accelerator cuda" in job.stderr
        return
    assert job.returncode == 0, textwrap.indent(job.stdout[-2000:] + job.stderr[-4000:], "  ")


# --- the page Troubles, and `zerorun explain` ---

ENTRIES = error_texts.entries(error_texts.ENTRIES.read_text())
MESSAGES = [line.split("\t") for line in error_texts.MESSAGES.read_text().splitlines()]


def test_the_page_has_every_text_of_the_sources() -> None:
    stale = [path for path, text in error_texts.outputs().items() if path.read_text() != text]
    assert stale == [], "run: python scripts/error_texts.py --write"
    assert len(MESSAGES) > 1000
    assert not [text for _, text in MESSAGES if "CPU rank{}" in text]  # a note


def test_entries_have_an_example_a_cause_and_a_remedy() -> None:
    anchors = [entry.anchor for entry in ENTRIES]
    assert len(set(anchors)) == len(anchors)
    for entry in ENTRIES:
        assert entry.body.count("**Cause.**") == entry.body.count("**Remedy.**") == 1, entry.anchor
        found = explain.explain("[rank 1] " + entry.body.splitlines()[0])
        assert found is not None
        assert found.anchor == entry.anchor
    assert {anchor for anchor, _ in MESSAGES} <= set(anchors)


def test_texts_with_values_are_explained_by_their_entry() -> None:
    wrong = []
    for anchor, text in (m for m in MESSAGES if len(m[1].split()) > 4):
        found = explain.explain("[zerorun] error: " + text.replace("{}", "out/x.7"))
        if found is None or found.anchor != anchor:
            wrong.append((text, anchor, found and found.anchor))
    assert len(wrong) <= 9, wrong  # most have no words of their own


@each(
    "text anchor",
    ("ValueError: could not convert string to float: 'abc'", None),
    ("torch.distributed.elastic.errors.ChildFailedError: train.py FAILED", None),
    ("AttributeError: 'Model' object has no attribute 'encode'", None),
    ("ModuleNotFoundError: No module named 'zerorun'", "program"),
    ("RuntimeError: mat1 and mat2 must have the same dtype, but got A and B", "parameters"),
    ("ValueError: Please correct the following DeepSpeed config values that", "contradiction"),
    ("--num_gpus 'two': expected a number from 1 to 1024, auto, gpu or cpu", "command-line"),
    ("--include 'localhost:7' names slot 7, but this host has 2 CPU slots (0 to 1)", "hosts"),
    ("zerorun ckpt show: nofolder: No such file or directory", "checkpoint-missing"),
    ("--data: cannot open nofolder: No such file or directory", "train-data"),
    ("RuntimeError: CUDA error: invalid device ordinal", "gpu-missing"),
    ("RuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB", "gpu-memory"),
    ("OSError: [Errno 98] Address already in use", "meeting"),
    ("nothing answers: the host is down, has another address, or a firewall", "meeting"),
    ("warning: rank 3 (host b) is waited for: 12 % of the time, spent loading", "straggler"),
    ("UserWarning: step() without a backward since the last one: nothing", "engine-calls"),
    ("RuntimeError: size mismatch, got input (32), mat (32x8), vec (0)", "empty-parameters"),
    ("The size of tensor a (16) must match the size of tensor b (0)", "empty-parameters"),
    ("The size of tensor a (16) must match the size of tensor b (8)", None),
    ("AssertionError: No inf checks were recorded for this optimizer.", "clipping"),
    ("me@b: Permission denied (publickey).", "hosts"),
    ("[zerorun] error: rank 1 failed: ranks diverged", "diverged"),
    ("zerorun._C.CommError: ranks diverged: rank 0 (pid 15018 on vm) calls", "diverged"),
    ('batch sizes: "auto", the program', "wrong-value"),
    ("offload_states: got device cuda,", "deepspeed-name"),
)
def test_a_text_gets_its_own_entry_or_none(text: str, anchor: str | None) -> None:
    found = explain.explain(text)
    assert (found.anchor if found else None) == anchor


def test_a_long_log_is_searched_at_once() -> None:
    line = "[rank 1] File (in a.py), line 3 of 7: x = f(y) (z), so it is: w; v\n"
    log = line * 2000 + "[zerorun] error: rank 1 ran into: CUDA out of memory"
    begin = time.process_time()
    assert not any(find(log, explain._messages()) for find in (explain._whole, explain._cut_off))
    assert time.process_time() - begin < 20  # with one regular expression per text it had no end


def test_the_command(tmp_path: Path) -> None:
    job = passed(shell("zerorun explain ranks diverged: rank 0 calls all_gather", tmp_path))
    assert re.search(r"\ARanks made .*\n.*\nCause\. .*\nRemedy\. ", job.stdout, re.DOTALL)
    assert job.stdout.endswith("docs/troubles.md#diverged\n")
    memory = "zerorun explain CUDA out of memory"
    job = shell("zerorun explain banana", tmp_path)
    assert (job.returncode, job.stdout) == (1, "")
    assert "quote more of the error. If it is not zerorun's" in job.stderr
    ended = f"{{ sleep 0.2; {memory}; echo $? >&2; }} | true"
    assert shell(ended, tmp_path).stderr == f"{128 + signal.SIGPIPE}\n"
    job = shell(f"{memory} >/dev/full", tmp_path)
    told = "zerorun: error: cannot write to standard output: No space left on device\n"
    assert (job.returncode, job.stderr) == (1, told)
