"""The machine code in the CUDA backend: the drivers that load it, and what its kernels take of a
multiprocessor. No GPU is needed to read that."""

from __future__ import annotations

import re
import subprocess
from functools import cache
from pathlib import Path

import gpu_code
import pytest

LIBRARIES = ("libzerorun_cuda.so", "libzerorun_train_cuda.so")
CUDA_12 = (0x33, 7)  # OS and ABI version of code for GPUs before 10.0; CUDA 13's own has 0x41 and 8

# Registers of a thread, at most. 256 threads of up to 64 registers fill half of a multiprocessor's
# threads, which is enough for what waits for memory; kernels with more have arithmetic to do.
REGISTERS = {
    "map_elements": 48,
    "update_vectors": 48,
    "update_blocks": 80,  # 8-bit states and stochastic rounding; 64 with one state
    "squares": 96,
    "norm_backward": 80,  # 24 warps of a multiprocessor, with a row's 16 bytes each of x and dy
    "quantize_blocks": 48,
    "dequantize_blocks": 48,
    "attend": 128,
    "query_gradients": 128,
    "key_value_gradients": 160,
    "token_gradients": 96,  # 82 from 10.0 on
}
OTHERS = 64


@cache
def images_of(library: Path) -> list[gpu_code.Image]:
    if not library.exists():
        pytest.skip("this build has no CUDA backend")
    return list(gpu_code.images(library))


def kernel_name(mangled: str) -> str:
    """The part of a mangled name before its template arguments or parameters: the last word that
    is no namespace."""
    words = re.findall(r"(?<=\d)([a-z]+(?:_[a-z]+)*)(?=I|E|P|v)", mangled)
    return next(word for word in words if word not in ("zerorun", "cuda", "train"))


@pytest.mark.parametrize("name", LIBRARIES)
def test_drivers_of_cuda_12_load_all_code(build: Path, zerorun: Path, name: str) -> None:
    found = images_of(build / "lib" / name)
    command = [zerorun, "env"]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    if "for drivers of CUDA 12" not in told:
        pytest.skip("this build is for drivers of CUDA 13")
    assert {image.kind for image in found} == {gpu_code.PTX, gpu_code.ELF}
    for image in found:
        assert image.flags & gpu_code.ZSTD == 0  # which only later drivers unpack
        old = image.capability < 100
        if image.kind == gpu_code.PTX:
            assert image.ptx_version <= ((8, 0) if old else (8, 8))
        elif old:
            assert image.abi == CUDA_12


@pytest.mark.parametrize("name", LIBRARIES)
def test_kernels_keep_what_they_work_on_in_registers(build: Path, name: str) -> None:
    seen = set()
    for image in images_of(build / "lib" / name):
        if image.kind != gpu_code.ELF:
            continue
        for mangled, takes in gpu_code.kernels(image.code).items():
            where = f"{mangled} on {image.capability}"
            assert takes["frame"] == 0, where
            if "registers" not in takes:  # a function that kernels call
                continue
            kernel = kernel_name(mangled)
            seen.add(kernel)
            assert takes["registers"] <= REGISTERS.get(kernel, OTHERS), where
    assert len(seen) >= 6
