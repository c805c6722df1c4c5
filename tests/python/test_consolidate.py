"""Models out of checkpoints, without a job; cases/checkpoints.py has more."""

import json
from pathlib import Path

import pytest
import torch
import zerorun
from safetensors.torch import load_file
from zerorun.consolidate import fp32_state_dict, lazy_state_dict, main, save_model
from zerorun.interchange.model_files import nbytes_of


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
    files = save_model(
        runs / "stage3-pieces-3",
        tmp_path,
        dtype=torch.bfloat16,
        max_shard_size="300B",
        safe_serialization=True,
    )
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


def test_a_model_in_other_parts_does_not_stay_beside_the_new_one(
    runs: Path, tmp_path: Path
) -> None:
    def save(**options: object) -> list[str]:
        return save_model(runs / "stage3-fp32-2", tmp_path, safe_serialization=True, **options)

    whole = save()
    assert save() == whole  # the same files again
    with pytest.raises(zerorun.ConfigError, match=r"has model\.safetensors, which would not be"):
        save(max_shard_size="300B")
    assert [str(path) for path in tmp_path.iterdir()] == whole
    Path(whole[0]).unlink()
    parts = save(max_shard_size="300B")
    with pytest.raises(zerorun.ConfigError, match="has model-00001-of-"):
        save()
    assert sorted(str(path) for path in tmp_path.iterdir()) == sorted(parts)


def test_pickled_files_keep_ties(runs: Path, tmp_path: Path) -> None:
    (path,) = save_model(runs / "stage2-fp32-2", tmp_path)
    state = torch.load(path, weights_only=True)
    assert state["head.weight"].data_ptr() == state["embedding.weight"].data_ptr()


def test_the_command_writes_files_and_names_what_is_not_there(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
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
        with pytest.raises(zerorun.ConfigError, match="expected bytes, or text as '5GB'"):
            nbytes_of(size)
