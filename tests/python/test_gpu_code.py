"""The machine code in the CUDA backend: the drivers that load it, and what its kernels take of a
multiprocessor. No GPU is needed to read that."""

import re
from collections.abc import Iterator
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


def test_the_runtime_that_the_build_found_is_named_with_its_version(build: Path) -> None:
    """As the other version's is beside it (device/cuda/libraries/library_files.h)."""
    library = build / "lib" / "libzerorun_train_cuda.so"
    text = library.read_bytes() if library.exists() else b""
    if b"CUDNN_FRONTEND_CUDART_LIB_NAME" not in text:
        pytest.skip("this build has no CUDA backend, or no cuDNN")
    assert re.search(rb"\0/[^\0]*/libcudart\.so\.\d+\0", text)


def ptx_of_the_device(build: Path) -> Iterator[tuple[str, str, str]]:
    for image in images_of(build / "lib" / "libzerorun_cuda.so"):
        if image.kind == gpu_code.PTX:
            for mangled, text in gpu_code.texts(image.code).items():
                yield gpu_code.kernel_name(mangled), mangled, text


def test_updates_move_vectors_of_every_dtype(build: Path) -> None:
    updates = 0
    for kernel, mangled, text in ptx_of_the_device(build):
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


def test_what_has_the_cpus_bits_is_not_fused(build: Path) -> None:
    """A fused multiply-add rounds once where the CPU rounds twice. (Those of update_blocks add
    multiples of 2^-13, in round_to_fp16, which are exact.)"""
    moves = {"quantize_blocks": "ld.global.v4", "dequantize_blocks": "st.global.v4"}
    found = []
    for kernel, mangled, text in ptx_of_the_device(build):
        if kernel in ("decide_alone", "ratio_each", "update_vectors", *moves):
            found.append(kernel)
            assert "fma." not in text, mangled
            if "ELb1E" in mangled:  # aligned
                assert moves[kernel] in text, mangled
    assert len(found) == 2 + 8 + 2 * 2 * 2 * 3  # rules; bits, alignments, dtypes
