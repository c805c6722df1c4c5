"""The safetensors files that the C++ tests compare with are what the reference package reads.

tests/checkpoint/models/safetensors_export_test.cc demands that zerorun writes exported.safetensors
byte for byte, so what holds for that file here holds for zerorun's export.
"""

import runpy
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
safetensors_torch = pytest.importorskip("safetensors.torch")
from safetensors import safe_open  # noqa: E402

DATA = Path(__file__).parent.parent / "checkpoint" / "data"


@pytest.mark.parametrize("name", ["mixed.safetensors", "exported.safetensors"])
def test_files_are_what_the_script_writes(name):
    make = runpy.run_path(str(DATA / "make_safetensors.py"))["FILES"][name]
    expected = safetensors_torch.load(make())
    found = safetensors_torch.load_file(DATA / name)
    assert found.keys() == expected.keys()
    for key, tensor in expected.items():
        assert found[key].dtype == tensor.dtype
        assert torch.equal(found[key], tensor), key
    with safe_open(DATA / name, framework="pt") as file:
        assert "exported" not in name or file.metadata() == {"format": "pt"}
