"""Models out of checkpoints, without a job; cases/checkpoints.py has more."""

import runpy

import safetensors.torch
import torch
import zerorun
from prelude import *
from safetensors import safe_open
from safetensors.torch import load_file
from zerorun.consolidate import fp32_state_dict, lazy_state_dict, main, save_model
from zerorun.interchange.model_files import nbytes_of
from zerorun.interchange.source import Piece, Source, SourceParameter
from zerorun.interchange.tensor_kinds import settle

OF_CPP = Path(__file__).parent.parent / "checkpoint" / "data"


def test_every_format_of_deepspeeds_has_one_model(runs: Path) -> None:
    """Runs in fp32 are the same training, on any number of ranks and at any stage."""
    expected = fp32_state_dict(runs / "stage1-fp32-1")
    assert expected["head.weight"] is expected["embedding.weight"]
    for path in runs.glob("*"):
        found = fp32_state_dict(path)
        assert found.keys() == expected.keys(), path.name
        bound = 1e-6 if not {"bf16", "fp16"} & set(path.name.split("-")) else 2e-2
        for name, value in expected.items():
            torch.testing.assert_close(found[name], value, rtol=bound, atol=bound)


def test_files_have_the_size_and_dtype_that_are_asked_for(runs: Path, tmp_path: Path) -> None:
    expected = fp32_state_dict(runs / "stage3-pieces-3")
    options = {"dtype": torch.bfloat16, "max_shard_size": "300B", "safe_serialization": True}
    files = save_model(runs / "stage3-pieces-3", tmp_path, **options)
    assert files[-1] == str(tmp_path / "model.safetensors.index.json")
    index = json.loads(Path(files[-1]).read_text())
    found = {}
    for path in files[:-1]:
        found |= load_file(path)
        assert Path(path).stat().st_size < 300 + 500
    assert index["weight_map"].keys() == found.keys() == expected.keys() - {"head.weight"}
    assert found["calls"].dtype == torch.int64
    assert index["metadata"]["total_size"] == sum(value.nbytes for value in found.values())
    for name, value in found.items():
        wanted = expected[name].bfloat16() if value.is_floating_point() else expected[name]
        assert torch.equal(value, wanted), name


def test_a_model_in_other_parts_stays_not_beside_a_new_one(runs: Path, tmp_path: Path) -> None:
    def save(**options: object) -> list[str]:
        return save_model(runs / "stage3-fp32-2", tmp_path, safe_serialization=True, **options)

    whole = save()
    assert save() == whole  # the same files again
    told = "has model.safetensors, which would not be"
    raises(zerorun.ConfigError, told, save, max_shard_size="300B")
    assert [str(path) for path in tmp_path.iterdir()] == whole
    Path(whole[0]).unlink()
    parts = save(max_shard_size="300B")
    raises(zerorun.ConfigError, "has model-00001-of-", save)
    assert sorted(str(path) for path in tmp_path.iterdir()) == sorted(parts)


def test_pickled_files_keep_ties(runs: Path, tmp_path: Path) -> None:
    (path,) = save_model(runs / "stage2-fp32-2", tmp_path)
    state = torch.load(path, weights_only=True)
    assert state["head.weight"].data_ptr() == state["embedding.weight"].data_ptr()


def test_the_command_writes_files_or_fails(runs: Path, tmp_path: Path, capsys: Capture) -> None:
    options = ["--safe_serialization", "--max_shard_size", "300B"]
    assert main([str(runs / "stage2-fp32-2"), str(tmp_path / "model"), *options]) == 0
    files = capsys.readouterr().out.splitlines()
    assert sorted(files) == sorted(map(str, (tmp_path / "model").iterdir()))
    assert main([str(tmp_path / "nothing"), str(tmp_path)]) == 1
    assert str(tmp_path / "nothing") in capsys.readouterr().err


def test_a_lazy_state_dict_reads_what_is_used(runs: Path) -> None:
    weight = lazy_state_dict(runs / "stage3-fp32-2")["first.weight"]
    assert weight.shape == (11, 7)
    expected = fp32_state_dict(runs / "stage3-fp32-2")["first.weight"]
    assert torch.equal(weight.contiguous(), expected)


def test_sizes() -> None:
    assert [nbytes_of(size) for size in ("5GB", "2 MiB", 7)] == [5 * 10**9, 2 << 20, 7]
    for size in ("5 GG", "", "-3MB", 0):
        raises(zerorun.ConfigError, "expected bytes, or text as '5GB'", nbytes_of, size)


@each("name", "mixed.safetensors", "exported.safetensors")
def test_safetensors_files_of_the_cpp_tests_are_what_their_script_writes(name: str) -> None:
    """And what the reference package reads: safetensors_export_test.cc demands that zerorun writes
    exported.safetensors byte for byte."""
    make = runpy.run_path(str(OF_CPP / "make_safetensors.py"))["FILES"][name]
    expected = safetensors.torch.load(make())
    found = load_file(OF_CPP / name)
    assert found.keys() == expected.keys()
    for key, tensor in expected.items():
        assert found[key].dtype == tensor.dtype
        assert torch.equal(found[key], tensor), key
    with safe_open(OF_CPP / name, framework="pt") as file:
        assert "exported" not in name or file.metadata() == {"format": "pt"}


# --- what tensors are of which a checkpoint only has the names, as FSDP2 and others write them ---

VALUES = {
    "numbers": torch.arange(12.0).view(4, 3),
    "others": torch.arange(1.0, 13.0).view(4, 3),
    "half": torch.arange(12.0).view(4, 3).bfloat16(),
    "flat": torch.arange(12.0),
    "ones": torch.ones(5),
    "zeros": torch.zeros(5),
    "count": torch.tensor(3),
    "packed": torch.ones(3, dtype=torch.uint8),
}


def source_of(tensors: str, only_names: bool = True) -> Source:
    """Of NAME=VALUES; "+" stands for optimizer states, "/" for a tensor that was saved in parts."""
    named = {}
    for word in tensors.split():
        name, _, values = word.partition("=")
        value = VALUES[values.strip("+/")].clone()
        pieces, parts = [Piece(0, value.numel(), value)], 2 if "/" in values else 1
        shape = tuple(value.shape)
        named[name] = SourceParameter(shape, pieces, value.dtype, "+" in values, parts=parts)
    return Source("here", "a test", named, only_names=only_names)


def shown(source: Source) -> str:
    """Parameters, with "+" if they are trained, and buffers."""
    names = [name + "+" * found.trained for name, found in source.parameters.items()]
    return " ".join([*names, "|", *source.buffers])


@each(
    "tensors given expected aliases texts",
    pytest.param(
        "head=numbers/ embedding=numbers+/ fixed=others/ again=others/ table=numbers n=count",
        {},
        "embedding+ fixed | table n",
        {"head": "embedding", "again": "fixed"},
        ["buffers: table, n (", "same: head = embedding, again = fixed ("],
        id="among tensors in parts, buffers are whole, and ties have the same values",
    ),
    pytest.param(
        "norm=ones+/ bias=zeros+/ fixed=ones/ free=zeros/ one=numbers+/ two=numbers+/ h=half/"
        " f=flat/",
        {},
        "norm+ bias+ fixed free one+ two+ h f |",
        {},
        [],
        id="ones and zeros, other dtypes and shapes, and two that are trained are no ties",
    ),
    pytest.param(
        "w=numbers+ n.running_mean=flat n.num_batches_tracked=count rest=flat bytes=packed",
        {},
        "w+ rest bytes | n.running_mean n.num_batches_tracked",
        {},
        ["buffers: n.running_mean, ", "frozen parameters: rest, bytes (--tensor NAME=buffer"],
        id="of whole tensors, only counts and statistics are known to be buffers",
    ),
    pytest.param(
        "embedding=numbers/ head=numbers/ fixed=others/ bytes=packed/",
        {"fix*": "frozen"},
        "embedding+ fixed bytes |",
        {"head": "embedding"},
        ["same: head = embedding (", "2 tensors are taken as parameters"],
        id="without states, all of floating point counts as trained",
    ),
    pytest.param(
        "embedding=numbers+ copy=numbers norm=ones again=ones rope.0.a=flat rope.1.a=flat",
        {"copy": "frozen", "rope.*": "buffer", "again": "norm"},
        "embedding+ copy norm | rope.0.a rope.1.a",
        {"again": "norm"},
        [],
        id="what is given comes first",
    ),
)
def test_kinds(tensors: str, given: Any, expected: str, aliases: Any, texts: list[str]) -> None:
    source, before = source_of(tensors), source_of(tensors).parameters
    told = settle(source, given)
    assert (shown(source), source.aliases) == (expected, aliases)
    assert all(torch.equal(value, before[name].full()) for name, value in source.buffers.items())
    assert [line for line, text in zip(told, texts, strict=True) if text not in line] == []


def test_other_sources_say_themselves_what_is_a_buffer() -> None:
    source = source_of("w=numbers+ calls=count", only_names=False)
    assert settle(source, {}) == []
    assert shown(source) == "w+ calls |"


@each(
    "given message",
    ({"heed": "buffer"}, "no such parameter; nearest: head"),
    ({"body": "buffer"}, "body has optimizer states, so it is a trained parameter"),
    ({"head": "bufer"}, "expected buffer, frozen, or the name of the parameter"),
    ({"head": "head"}, "expected buffer, frozen, or the name of the parameter"),
    ({"head": "body"}, "head and body differ in values, shape or dtype"),
    ({"head": "same", "same": "buffer"}, "head=same: which is buffer itself"),
)
def test_what_cannot_be_is_an_error(given: dict[str, str], message: str) -> None:
    source = source_of("body=numbers+ head=others same=others")
    raises(zerorun.ConfigError, message, settle, source, given)
    assert shown(source) == "body+ head same |"
