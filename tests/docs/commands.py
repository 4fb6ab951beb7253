"""Checks a command of the documents without doing what it does: that its program, file, module or target is there, and
that it takes the options.

Words in capitals, such as CHECKOUT, and "..." stand for what the reader puts in.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator, Sequence

from packaging.requirements import InvalidRequirement, Requirement

from benchmarks.__main__ import BENCHMARKS
from tests.docs.blocks import ROOT
from tests.parallel.launch import QUIET

OF_THE_READER = ("train.py",)
SHELL = re.compile(r"^(for .*; do|done)$")
ASSIGNED = re.compile(r"^([A-Z_]+)=")


def split(text: str) -> Iterator[list[str]]:
    """The commands of a block of shell lines, in words, without comments and the lines of loops."""
    for line in text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if words and not SHELL.match(" ".join(words)):
            yield words


def problem(words: Sequence[str]) -> str:
    """What is wrong with a command, or ""."""
    words = list(words)
    while words and (assigned := ASSIGNED.match(words[0])):
        if not _is_read(assigned[1]):
            return f"nothing reads the variable {assigned[1]}"
        words.pop(0)
    if not words:
        return ""
    program = pathlib.PurePath(words[0]).name
    for pattern, check in PROGRAMS.items():
        if re.fullmatch(pattern, program):
            return check(words)
    if (ROOT / words[0]).is_file():
        return _of_a_file(words)
    if _is_there(words[0]):  # examples/launch/ray_job.py starts modules
        return _of_python(["python", "-m", *words])
    return f"{words[0]} is neither a file of the repository nor in PROGRAMS of {__name__}: add how it is checked"


@functools.cache
def _is_read(variable: str) -> bool:
    found = subprocess.run(
        ["git", "grep", "--quiet", "--word-regexp", variable, "--", ":!*.md", ":!tests/docs"], cwd=ROOT
    )
    return found.returncode == 0 or variable.startswith(("TF_", "HOROVOD_"))


def _of_make(words: list[str]) -> str:
    targets = [word for word in words[1:] if "=" not in word and word != "..."]
    absent = [word for word in targets if word.startswith("bench-") and not _is_a_benchmark(word[6:])]
    if absent:
        return f"there is no benchmark {absent[0]}"
    given = [word for word in words[1:] if word != "..."]
    return _run(["make", "--dry-run", "--no-print-directory", *given])


def _is_a_benchmark(name: str) -> bool:
    return name.isupper() or name in BENCHMARKS


def _of_python(words: list[str]) -> str:
    if words[1] == "-m":
        module, arguments = words[2], words[3:]
        if module in MODULES:
            return MODULES[module](arguments)
        if not _is_there(module):
            return f"there is no module {module}"
        return _takes([sys.executable, "-m", module], arguments)
    if words[1] in OF_THE_READER:
        return ""
    return (
        _takes([sys.executable, words[1]], words[2:]) if (ROOT / words[1]).is_file() else f"there is no file {words[1]}"
    )


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def _takes(program: list[str], arguments: Sequence[str]) -> str:
    """Whether a program's help names the options; what follows "--" is a command of its own."""
    end = [*arguments, "--"].index("--")
    given, rest = arguments[:end], arguments[end + 1 :]
    options = [word.partition("=")[0] for word in given if word.startswith("-")]
    told = _help(tuple(program)) if options else ""
    first = given[0] if given else ""
    if re.match(r"\w+$", first) and re.search(rf"^ +{first} ", told, re.MULTILINE):  # a subcommand
        told = _help((*program, first))
    unknown = [f"{' '.join(program)} has no {each}" for each in options if not re.search(rf"{each}\b", told)]
    return "; ".join(unknown) or (problem(rest) if rest else "")


@functools.cache
def _help(program: tuple[str, ...]) -> str:
    ended = subprocess.run([*program, "--help"], cwd=ROOT, env={**os.environ, **QUIET}, capture_output=True, text=True)
    return ended.stdout


def _of_horovodrun(words: list[str]) -> str:
    rest = words[1:]
    while rest and rest[0] in ("-np", "-H", "--gloo", "..."):
        del rest[: 1 if rest[0] in ("--gloo", "...") else 2]
    return problem(rest)


def _of_sh(words: list[str]) -> str:
    return problem(shlex.split(words[2].partition("||")[0]))


def _of_sanitizer(words: list[str]) -> str:
    return problem(words[3:])  # compute-sanitizer --tool TOOL COMMAND


def _of_pip(arguments: list[str]) -> str:
    wanted = [word for word in arguments[1:] if not word.startswith("-")]
    return _run([sys.executable, "-m", "pip", arguments[0], "--help"]) + "".join(map(_wrong_requirement, wanted))


def _wrong_requirement(text: str) -> str:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    path, _, extra = text.rstrip("]").partition("[")
    if path == "." or (ROOT / path).is_file():
        return f"there is no extra {extra}\n" if extra and extra not in extras else ""
    try:
        return "" if Requirement(text) else ""
    except InvalidRequirement as error:
        return f"{error}\n"


def _of_venv(arguments: list[str]) -> str:
    return "" if len(arguments) == 1 else f"venv takes one folder, not {arguments}"


def _of_pytest(arguments: list[str]) -> str:
    """Some tests are collected."""
    return _run([sys.executable, "-m", "pytest", "--collect-only", "--quiet", *arguments])


def _of_a_tool(module: str) -> Callable[[list[str]], str]:
    return lambda arguments: _run([sys.executable, "-m", module, *arguments[:1], "--help"])


def _of_a_package_manager(words: list[str]) -> str:
    """Names of packages are those of another system."""
    return "" if words[1] in ("install", "update") else f"{words[0]} {words[1]} has no rule"


def _of_a_file(words: list[str]) -> str:
    path = ROOT / words[0]
    return _takes([str(path)], words[1:]) if os.access(path, os.X_OK) else f"{words[0]} cannot be executed"


def _run(command: list[str]) -> str:
    ended = subprocess.run(command, cwd=ROOT, env={**os.environ, **QUIET}, capture_output=True, text=True)
    return "" if ended.returncode == 0 else (ended.stdout + ended.stderr)[-1500:]


def bash_accepts(text: str) -> str:
    """What bash says about the syntax, or ""."""
    checked = subprocess.run([shutil.which("bash") or "bash", "-n"], input=text, capture_output=True, text=True)
    return checked.stderr


PROGRAMS: dict[str, Callable[[list[str]], str]] = {
    "make": _of_make,
    r"python(3|3\.\d+)?": _of_python,
    "pip": lambda words: _of_pip(words[1:]),
    "horovodrun": _of_horovodrun,
    "sh": _of_sh,
    "compute-sanitizer": _of_sanitizer,
    "apt-get": _of_a_package_manager,
    "sudo": lambda words: problem(words[1:]),
    "printf": lambda words: "",  # of the shell
}
MODULES: dict[str, Callable[[list[str]], str]] = {
    "pip": _of_pip,
    "venv": _of_venv,
    "pytest": _of_pytest,
    "ruff": _of_a_tool("ruff"),
    "mypy": _of_a_tool("mypy"),
}
