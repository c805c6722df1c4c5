"""zerorun.torch_seam: a version that lacks a private name is an error that tells it."""

import ast
import types

import torch
import zerorun
from prelude import *
from torch import nn
from transformers.utils import is_torch_available
from zerorun import torch_seam
from zerorun.model import uncopied

# transformers needs a newer PyTorch than some that are supported, and so does torch's fully_shard.
USABLE = [
    each
    for each in torch_seam.NAMES
    if (each.module != torch_seam.TRANSFORMERS or is_torch_available())
    and (each.use != torch_seam.ADOPTION or torch_seam._VERSION >= (2, 6))
]


class _Params4bit:
    def __new__(cls) -> Any:
        made = object.__new__(cls)
        made.bnb_quantized, made.quant_state = False, None
        return made


class _Int8Params:
    def __init__(self) -> None:
        self.CB, self.SCB = None, None


@pytest.fixture(autouse=True)
def _everything_is_loaded(monkeypatch: Patch) -> None:
    modules = types.ModuleType("bitsandbytes.nn.modules")
    modules.Params4bit, modules.Int8Params = _Params4bit, _Int8Params
    for name in ("bitsandbytes", "bitsandbytes.nn"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, modules.__name__, modules)
    for private in USABLE:
        importlib.import_module(private.module)


def engine_of_one_rank() -> zerorun.ZeroEngine:
    return zerorun.initialize(nn.Linear(2, 2), config={"train_batch_size": 1})[0]


def without(owner: Any, name: str) -> Any:
    """What there is but for one name, and for functions whose code has it."""
    kept = {}
    for each, value in vars(owner).items():
        plain = value.__func__ if type(value) in (classmethod, staticmethod) else value
        code = plain.__code__ if type(plain) is types.FunctionType else None
        if each != name and not (code and name in torch_seam._words(code)):
            kept[each] = plain
    annotations = getattr(owner, "__annotations__", {})
    kept["__annotations__"] = {k: kind for k, kind in annotations.items() if k != name}
    return types.SimpleNamespace(**kept)


OF_EVERY_ENGINE = [
    each
    for each in USABLE
    if each.name != "ALL_ATTENTION_FUNCTIONS"
    and each.use != torch_seam.ADOPTION
    and not (each.is_new or hasattr(object, each.name))
]
OF_PYTHON = {
    *("_SubParsersAction", "_Unpickler", "_actions", "_asdict", "_exit", "_getframe"),
    *("_make", "_option_string_actions"),
}


def test_the_table_has_every_private_name_that_the_package_reads() -> None:
    read, own = set(), set()
    for file in (ROOT / "python" / "zerorun").rglob("*.py"):
        own.add(file.stem)
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                read.add(node.attr)
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                read |= {name.name for name in node.names}
            elif isinstance(node, ast.FunctionDef | ast.ClassDef):
                own.add(node.name)
            elif isinstance(node, ast.Name | ast.Attribute):
                own.add(node.id if isinstance(node, ast.Name) else node.attr)
    private = {name for name in read - own if name[0] == "_" and name[:2] != "__"}
    listed = {part for name in torch_seam.NAMES for part in str(name).split(".")}
    assert private - listed <= OF_PYTHON


def test_functions_of_torch_are_replaced_in_one_place() -> None:
    sources = {file.stem: file.read_text() for file in (ROOT / "python/zerorun").rglob("*.py")}
    torchs = r"(?:torch|nn|F|Tensor)\.[\w.]+"
    assignment = rf"^ *(del {torchs}|{torchs} [+|]?= .*|setattr\((?:torch|nn)\b.*)(?: *#.*)?$"
    found = {stem: re.findall(assignment, text, re.M) for stem, text in sources.items()}
    assert {stem: lines for stem, lines in found.items() if lines} == {
        "_gradients": ["del nn.Parameter.grad"],  # what replace() has put there
        "partition_parameters": [  # DeepSpeed's, which torch has not
            "setattr(nn.Parameter, _name, property(functools.partial(_value, _name, _get)))"
        ],
    }
    for name in ("cell_contents", "__closure__"):
        assert not any(name in text for text in sources.values())
    with pytest.raises(AssertionError):
        torch_seam.replace(torch, "ones", torch.zeros)


@pytest.mark.skipif(not is_torch_available(), reason="transformers needs a newer PyTorch")
def test_what_only_sequence_parallelism_needs_is_asked_for_there(monkeypatch: Patch) -> None:
    module = importlib.import_module("transformers.modeling_utils")
    monkeypatch.delattr(module, "ALL_ATTENTION_FUNCTIONS")
    monkeypatch.setattr(module, "__annotations__", {})
    engine_of_one_rank().destroy()
    use = zerorun.sequence.use_with_transformers
    raises(zerorun.ConfigError, "ALL_ATTENTION_FUNCTIONS", use, SimpleNamespace())


def test_all_names_are_there() -> None:
    torch_seam.check()
    assert len(set(map(str, torch_seam.NAMES))) == len(torch_seam.NAMES) >= 38


@each("private", *OF_EVERY_ENGINE, ids=str)
def test_a_name_that_is_gone_is_an_error(private: Any, monkeypatch: Patch) -> None:
    owner_of = torch_seam._owner_of
    monkeypatch.setattr(
        torch_seam,
        "_owner_of",
        lambda name: without(owner_of(name), name.name) if name == private else owner_of(name),
    )
    with pytest.raises(zerorun.ConfigError, match=rf"has no {private}, which .* for ") as raised:
        engine_of_one_rank()
    assert private.seen in str(raised.value)


def test_names_are_looked_up_and_not_guessed(monkeypatch: Patch) -> None:
    for owner, name in ((nn.Module, "_call_impl"), (torch._C, "_current_graph_task_id")):
        annotations = {k: v for k, v in getattr(owner, "__annotations__", {}).items() if k != name}
        with monkeypatch.context() as changed:
            changed.setattr(owner, "__annotations__", annotations, raising=False)
            changed.delattr(owner, name)
            raises(zerorun.ConfigError, name, torch_seam.check)
    monkeypatch.setattr(_Params4bit, "__new__", object.__new__)
    raises(zerorun.ConfigError, "bnb_quantized", torch_seam.check)


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="None has no count of references there")
def test_asking_for_a_running_compiler_keeps_references() -> None:
    """PyTorch 2.6 gives a reference away that it does not have."""
    before = sys.getrefcount(None)
    for _ in range(1000):
        uncopied._compiled_caller()
    assert abs(sys.getrefcount(None) - before) < 500
