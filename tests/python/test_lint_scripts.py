"""The lint scripts report what breaks the rules. What is allowed, they pass in every run."""

from prelude import *

SCRIPTS = ROOT / "scripts"


def lint(script: str, root: Path, files: dict[str, str], *options: str) -> tuple[int, list[str]]:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    result = ran([sys.executable, SCRIPTS / script, *options, root])
    assert result.stderr == ""
    return result.returncode, result.stdout.splitlines()


# By file: a second line that breaks a rule.
VIOLATIONS = {
    "core/a.cc": '#include "zero/engine.h"',
    "device/a.cc": '#  include "comm/shm.h"',
    "config/keys/a.cc": '#include "config/derive.h"',
    "tools/plan/a.cc": '#include "tools/ckpt/ckpt_report.h"',
    "zero/a.cc": '#include "bucket.h"',
    "include/zerorun/a.h": "#include <unistd.h>",
    "include/zerorun/b.h": '#include "core/check.h"',
    "comm/shm.cc": "#include <nccl.h>",
    "zero/b.cc": "void f() { cudaFree(p); }",
    "zero/c.cc": "CUdeviceptr p;",
    "optim/a.cc": "__host__ __device__ float f();",
    "zero/d.cc": "#include <torch/torch.h>",
    "checkpoint/a.h": "at::Tensor t;",
    "launcher/main.cc": 'auto x = secure_getenv("HOME");',
    "zero/e.cc": "void f() { exit (1); }",
    "comm/a.cc": "void f() { std::terminate(); }",
    "zero/f.cc": "const int n = 1'000'000; char c = '\"'; void f() { exit(1); } // \"",
}


def test_boundary_violations_are_reported(tmp_path: Path) -> None:
    files = {path: f"// first line\n{code}\n" for path, code in VIOLATIONS.items()}
    _, problems = lint("check_boundaries.py", tmp_path, files)
    assert {problem.partition(": ")[0] for problem in problems} == {f"{path}:2" for path in files}


def test_a_name_is_that_of_one_type_unless_others_cannot_name_it(tmp_path: Path) -> None:
    source = (
        "namespace zerorun { class B; namespace { class B {}; } void f(B b) { struct D {} d; } "
        "template <> struct hash<int> {}; struct sigaction B {}; } // class B {"
    )
    files = {
        "comm/a.h": "namespace zerorun {\nstruct A final : C<int> { int a; };\nclass B {};\n}",
        "comm/b.h": "namespace zerorun {template <> struct hash<B> {}; struct D { enum E {}; }; }",
        "offload/a.h": "namespace zerorun {\nenum class A : uint8_t { one };\n}",
        "zero/a.h": "namespace zerorun::zero { class A {}; }",
        "offload/a.cc": source,
        "zero/a.cc": source,
    }
    message = "zerorun::A is also a type of comm/a.h: each type needs a name of its own"
    assert lint("check_boundaries.py", tmp_path, files) == (1, [f"offload/a.h:1: {message}"])


MODULES = {
    "config": "from zerorun.engine import ZeroEngine\ndef f():\n    from zerorun import engine",
    "device": "import os\nx = os.environ.get('A')\nx = os.environ['A']\nx = os.getenv('A')",
    "engine": "from zerorun.zero import Init\nimport zerorun\nfrom zerorun import ZeroOptimizer",
    "helpers": "from zerorun import _C",
    "shards/shards": "from zerorun.shards.states import StateAccess",
    "shards/states": "if TYPE_CHECKING:\n    from zerorun.shards.shards import Shards",
    "zero/__init__": "",
    "zero/init": "",
}
OF_IMPORTS = [
    *(f"config.py:{line}: import of engine: config may not" for line in (1, 3)),
    *(f"device.py:{line}: read the environment" for line in (2, 3, 4)),
    "engine.py:1: import of zero: zero is for users",
    *(f"engine.py:{line}: import of __init__: __init__ is for users" for line in (2, 3)),
    "helpers.py:1: import of _C: helpers has no layer",
    "shards/shards.py:1: import circle: shards.shards -> shards.states -> shards.shards",
]


def test_imports_that_point_upwards_are_reported(tmp_path: Path) -> None:
    files = {f"python/zerorun/{name}.py": code for name, code in MODULES.items()}
    _, problems = lint("check_boundaries.py", tmp_path, files)
    for problem, expected in zip(problems, OF_IMPORTS, strict=True):
        assert problem.startswith(f"python/zerorun/{expected}")


def test_a_model_that_was_added_by_accident_is_reported(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(bytes((1 << 20) + 1))
    output_of("git", "init", "-q", cwd=tmp_path)
    output_of("git", "add", ".", cwd=tmp_path)
    expected = "model.safetensors: 1048577 bytes; a file in git has at most 1048576"
    assert lint("check_size.py", tmp_path, {}) == (1, [expected])


def function_of(lines: int, before: str = "") -> str:
    return before + "int f(int x) {\n" + "  ++x;\n" * (lines - 3) + "  return x;\n}\n"


def struct_of(members: int) -> str:
    rest = "".join(f"  int64_t field{i} = {i};\n" for i in range(members - 6))
    return f"""struct A {{
  using Name = int;
  static constexpr int kLimit = 3;
  struct B {{ int inner = 0; }};
  friend class C;
  A() = default;
  A& operator=(const A&) = delete;
  ~A() {{ close(); }}
  int64_t end() const {{ int local_ = 1; return begin + local_; }}
  TensorView part(const B& b, int at) const;
  std::function<void(int, B)> visit;
  std::map<int, std::vector<int>> lists;
  const char* name = "one; two";
  std::vector<int> sizes{{}};
  B b{{.inner = 1}};
  int words[kLimit];
{rest}}};
"""


def derived_class(members: int, inherited: int) -> str:
    fields = "".join(f"  int field{i} = {i};\n" for i in range(members - 2))
    more = "  const std::map<int, int>*p = f(1, 2), q[2] = {{1, 2}};\n  int g(int a, int b);\n"
    bases = f"struct Base {{ int {', '.join(f'b{i}' for i in range(inherited))}; }};\n"
    return f"{bases}class A final : public zerorun::Base, I<int> {{\n{fields}{more}}};\n"


def python_class_of(members: int, head: str = "class A:") -> str:
    lines = [f"        self.a{i}, other.x{i} = {i}, 0" for i in range(members - 1)]
    more = ["        self.a0 += 1", "        b = self.c"]
    return "\n".join([head, "    field: int = 0", "    def f(self, other):", *lines, *more])


OF_BASES = " A has 16 data members with those of its base classes;"
DERIVED = python_class_of(15, "\nclass B:\n    b: int\nclass A(x.B):")


@each(
    "path code found",
    ("core/a.cc", "int x;\n" * 401, "core/a.cc:1: 401 lines"),
    ("dev", "#!/bin/sh\n" + "true\n" * 400, "dev:1: 401 lines"),
    ("zero/a.cc", function_of(60), None),
    ("zero/a.cc", function_of(61), "zero/a.cc:1: f has 61 lines"),
    ("zero/a.cc", function_of(61, "\n// size:\n"), "zero/a.cc:3: f has 61 lines"),
    ("zero/a.h", struct_of(16), "zero/a.h:1: A has 16 data members"),
    ("zero/a.h", derived_class(16, 0), "zero/a.h:2: A has 16 data members"),
    ("python/a.py", python_class_of(16), "python/a.py:1: A has 16 data members"),
    ("zero/a.h", derived_class(10, 6), "warning: zero/a.h:2:" + OF_BASES),
    ("python/a.py", DERIVED, "warning: python/a.py:4:" + OF_BASES),
)
def test_an_overrun_is_reported(tmp_path: Path, path: str, code: str, found: str | None) -> None:
    status, problems = lint("check_size.py", tmp_path, {path: code})
    assert status == (found is not None and not found.startswith("warning"))
    assert [problem[: len(found or "")] for problem in problems] == ([found] if found else [])


CEILINGS = "scripts/ceilings.json"
LINES = {"zero/a.cc": 3, "zero/update/b.h": 4, "zero/data.json": 9, "python/bindings/c.cc": 2}


def house(root: Path, ceilings: dict[str, tuple[int, int]], *options: str) -> tuple[int, list[str]]:
    """With the files and lines that each folder may have."""
    output_of("git", "init", "-q", root)
    named = {folder: {"files": f, "lines": n} for folder, (f, n) in ceilings.items()}
    files = {name: "int x;\n" * lines for name, lines in LINES.items()}
    return lint("house.py", root, files | {CEILINGS: json.dumps(named)}, *options)


@each(
    "zero found",
    ((2, 7), []),
    ((3, 9), []),
    ((2, 5), ["zero has 7 lines, 2 above its ceiling of 5"]),
    ((1, 7), ["zero has 2 files, 1 above its ceiling of 1"]),
    (None, ["zero has no ceiling"]),
)
def test_ceilings(tmp_path: Path, zero: tuple[int, int] | None, found: list[str]) -> None:
    ceilings = {"python/bindings": (1, 2), "removed": (1, 1)} | ({"zero": zero} if zero else {})
    status, problems = house(tmp_path, ceilings, "--check")
    assert [problem.partition(":")[0] for problem in problems] == found
    assert status == bool(found)
    assert all("scripts/" in problem for problem in problems)  # what to do


def test_ceilings_are_only_lowered(tmp_path: Path) -> None:
    assert house(tmp_path, {"zero": (5, 6), "removed": (1, 1)}, "--tighten") == (0, [])
    assert json.loads((tmp_path / CEILINGS).read_text()) == {
        "python/bindings": {"files": 1, "lines": 2},
        "zero": {"files": 2, "lines": 6},
    }
