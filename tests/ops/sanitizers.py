"""Programs that run kernels under the compiler's sanitizers, without Python or TensorFlow."""

import pathlib
import shutil
import subprocess
from collections.abc import Iterable

OPS = pathlib.Path(__file__).resolve().parents[2] / "ops"
COMMON = OPS / "common" / "cpu_features.cc"


def check(
    folder: pathlib.Path,
    main: pathlib.Path,
    kernels: Iterable[pathlib.Path],
    sanitizer: str = "address,undefined",
    level: str = "-O1",
) -> None:
    """Builds a program in a folder and runs it; it must succeed and print what it has checked.

    Args:
        folder: where the program is built.
        main: the source with `main`.
        kernels: the sources of the kernels, except those that all programs share.
        sanitizer: the argument of -fsanitize, "address,undefined" or "thread".
        level: the optimisation level: "-O0" for a program that is slow to compile and quick to run, as vector
            instructions with the address sanitizer then compile in less than half the time.
    """
    program = folder / main.stem
    checks = [f"-fsanitize={sanitizer}", "-fno-sanitize-recover=all"]
    flags = ["-std=c++17", "-g1", level, *checks, "-ffp-contract=off", f"-I{OPS}", "-pthread"]
    command = [shutil.which("c++"), *flags, *map(str, [main, *sorted(kernels), COMMON]), "-o", str(program)]
    built = subprocess.run(command, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    ran = subprocess.run([str(program)], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout.splitlines()[-1].startswith("checked ")
