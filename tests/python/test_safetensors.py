"""The safetensors files that the C++ tests compare with are what the reference package reads.

tests/checkpoint/models/safetensors_export_test.cc demands that zerorun writes exported.safetensors byte
for byte, so what holds for that file here holds for zerorun's export.
"""

import importlib.util
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
safetensors_torch = pytest.importorskip("safetensors.torch")
from safetensors import safe_open  # noqa: E402

DATA = Path(__file__).parent.parent / "checkpoint" / "data"


@pytest.fixture(scope="module")
def make_safetensors():
    spec = importlib.util.spec_from_file_location("make_safetensors", DATA / "make_safetensors.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["mixed.safetensors", "exported.safetensors"])
def test_files_are_what_the_script_writes(make_safetensors, name):
    expected = safetensors_torch.load(make_safetensors.FILES[name]())
    found = safetensors_torch.load_file(DATA / name)
    assert found.keys() == expected.keys()
    for key, tensor in expected.items():
        assert found[key].dtype == tensor.dtype
        assert torch.equal(found[key], tensor), key


def test_exported_file_opens_as_a_pytorch_model(make_safetensors):
    with safe_open(DATA / "exported.safetensors", framework="pt") as file:
        assert file.metadata() == {"format": "pt"}
        assert set(file.keys()) == {
            "empty",
            "frozen",
            "lm_head.weight",
            "scale",
            "transformer.h.0.ln.weight",
            "transformer.wte.weight",
        }
        weight = file.get_tensor("transformer.wte.weight")
        assert weight.shape == (3, 5)
        assert weight[1, 2].item() == 10 + 7 * 0.5
        assert torch.equal(weight, file.get_tensor("lm_head.weight"))
