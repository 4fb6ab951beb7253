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
    """Builds a program in a folder and runs it: it must end well, and say what it has checked.

    Args:
        folder: where the program is built.
        main: the source with `main`.
        kernels: the sources of the kernels, but for what all share.
        sanitizer: what -fsanitize gets, "address,undefined" or "thread".
        level: how much is optimised: "-O0" for a program that takes long to compile and not to run, as vector
            instructions under the sanitizer for addresses compile in under half of the time.
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
