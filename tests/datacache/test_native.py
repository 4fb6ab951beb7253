"""The kernels of ops/datacache, called through ctypes."""

import ctypes
import importlib.util
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import xxhash

import datacache.native
from datacache import native

ROOT = Path(__file__).resolve().parents[2]
OPS = ROOT / "ops" / "datacache"


def test_xxh3_is_that_of_the_reference():
    numbers = random.Random(0)
    for length in [*range(1100), 2047, 2048, 2049, 27_648, 100_001]:
        data = numbers.randbytes(length)
        for seed in (0, 1, numbers.getrandbits(64)):
            assert native.xxh3(data, seed) == xxhash.xxh3_64_intdigest(data, seed), (length, seed)


def test_copied_and_hashed_in_one_pass_it_is_the_same():
    numbers = random.Random(1)
    for length in [*range(300), 1023, 1024, 1025, 1088, 2049, 27_648]:
        data, copy = numbers.randbytes(length), bytearray(b"x" * (length + 64))
        target = (ctypes.c_char * len(copy)).from_buffer(copy)
        assert native.library().datacache_xxh3_copy(target, data, length, 7) == native.xxh3(data, 7), length
        assert copy == data + b"x" * 64


def test_crc32c_is_that_of_the_standard():
    # RFC 3720, appendix B.4
    vectors = {bytes(32): 0x8A9136AA, b"\xff" * 32: 0x62A8AB43, bytes(range(32)): 0x46DD794E, b"123456789": 0xE3069283}
    assert {data: native.crc32c(data) for data in vectors} == vectors
    assert native.crc32c(b"") == 0


@pytest.mark.thorough
@pytest.mark.parametrize("sanitizer", ["address,undefined", "thread"])
def test_the_slab_is_clean_under_sanitizers(sanitizer, tmp_path):
    sources = [ROOT / "tests/datacache/sanitize_slab.cc", OPS / "slab.cc", OPS / "lent_slabs.cc"]
    command = ["c++", "-std=c++17", "-O1", "-g1", "-pthread", "-w", f"-I{OPS}", f"-fsanitize={sanitizer}"]
    program = tmp_path / "sanitize_slab"
    subprocess.run([*command, "-fno-sanitize-recover=all", *map(str, sources), "-o", str(program)], check=True)
    done = subprocess.run([str(program)], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout) == (0, "clean\n"), done.stdout + done.stderr[-4000:]


def test_the_core_does_without_tensorflow_and_horovod():
    code = (
        "import sys, datacache, datacache.sources; "
        "print(sorted({'tensorflow', 'horovod', 'hvd_sparse'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"


def test_a_library_that_is_not_compiled_is_an_error_in_words(tmp_path):
    spec = importlib.util.spec_from_file_location("stray_native", shutil.copy2(datacache.native.__file__, tmp_path))
    stray = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(stray)
    with pytest.raises(ImportError, match="is not compiled .*_native.so is missing.*make build"):
        stray.crc32c(b"")
