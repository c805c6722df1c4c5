"""The machine code in the CUDA backend: the drivers that load it, and what its kernels take of a
multiprocessor. No GPU is needed to read that."""

from functools import cache
from pathlib import Path

import gpu_code
import pytest
from ranks import passed, ran

LIBRARIES = ("libzerorun_cuda.so", "libzerorun_train_cuda.so")
CUDA_12 = (0x33, 7)  # OS and ABI version of code for GPUs before 10.0; CUDA 13's own has 0x41 and 8


@cache
def images_of(library: Path) -> list[gpu_code.Image]:
    if not library.exists():
        pytest.skip("this build has no CUDA backend")
    return list(gpu_code.images(library))


@pytest.mark.parametrize("name", LIBRARIES)
def test_drivers_of_cuda_12_load_all_code(build: Path, zerorun: Path, name: str) -> None:
    found = images_of(build / "lib" / name)
    command = [zerorun, "env"]
    told = passed(ran(command)).stdout
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
    assert len(gpu_code.checked_kernels(images_of(build / "lib" / name))) >= 6


def test_updates_move_vectors_of_every_dtype(build: Path) -> None:
    updates = 0
    for image in images_of(build / "lib" / "libzerorun_cuda.so"):
        if image.kind != gpu_code.PTX:
            continue
        for mangled, text in gpu_code.texts(image.code).items():
            kernel = gpu_code.kernel_name(mangled)
            if kernel not in ("update_vectors", "update_blocks"):
                continue
            updates += 1
            expected = {"ld.global.v4.f32", "st.global.v4.f32", "st.global.v4.u16"}
            if kernel == "update_blocks":
                expected.add("ld.global.v4.u16")
            assert {move for move in expected if move not in text} == set(), mangled
            for move in ("ld.global", "st.global"):
                # Not every rule has states, or writes them. Four bytes may travel as a word.
                vectors = text.count(f"{move}.v4.u8") + text.count(f"{move}.u32")
                assert 4 * vectors >= text.count(f"{move}.u8"), (mangled, move)
    assert updates == 2 * 8  # for each rule, and SGD with and without momentum
