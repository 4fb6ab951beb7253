"""Each code block of the documents runs, or is checked in the way that its language or RULES says.

Blocks of Python run under horovodrun, with what their page presupposes (`tests/docs/pages`). Commands are checked by
`commands.py`; those of RUN are run, too: the rest install, build, take long or need a cluster.
"""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Callable, Mapping, Sequence

import pytest

from tests.docs import blocks, commands, ranks, returning
from tests.parallel import launch

ALL = blocks.collect()
HINT = (
    "name its language after the opening fence: python, sh or mermaid; or give it a rule in tests/docs/test_blocks.py"
)

# How the Python blocks are run: on two ranks, each a node, unless they are named here.
FOUR_RANKS = ("docs/pipeline.md 2",)
RETURNING = ("docs/averaging.md", "docs/servers.md")  # pages with a rank that is killed and replaced

CARRIED_OUT = ("docs/adding.md",)  # by test_adding.py

# Commands that are run, as they are, but for the interpreter and what makes them short.
RUN = {"ENV/bin/horovodrun -np 2 ENV/bin/python examples/keras_digits.py": ["--epochs", "1"]}
INLINE = re.compile(r"`((?:[A-Z_]+=\S+ )?(?:make|python3?|horovodrun|\.venv/bin/\w+)\s[^`|…]+)`")  # without "…"


def of(language: str) -> list[blocks.Block]:
    return [block for block in ALL if block.language == language and block.page not in CARRIED_OUT]


def is_about_a_return(block: blocks.Block) -> bool:
    return any(word in block.text for word in (returning.TICKET, returning.RETURN))


RETURNS = [block for block in of("python") if is_about_a_return(block)]
ON_FOUR = [block for block in of("python") if block.name in FOUR_RANKS]
ON_TWO = [block for block in of("python") if block not in [*RETURNS, *ON_FOUR]]


def named(block: blocks.Block) -> str:
    return block.name.replace(" ", "-")


# ---- what each block is ----


@pytest.mark.parametrize("block", ALL, ids=named)
def test_a_block_is_of_a_language_that_is_checked(block):
    assert block.language in ("python", "sh", "mermaid"), f"{block.page}:{block.line}: {HINT}"


def test_rules_name_blocks_that_there_are():
    assert set(FOUR_RANKS) == {block.name for block in ON_FOUR}
    assert {block.page for block in RETURNS} == set(RETURNING)
    assert set(RUN) <= {shlex.join(words) for block in of("sh") for words in commands.split(block.text)}
    # What draw_rooms draws is compared with the sources in tests/test_documents.py.
    assert [block.page for block in of("mermaid")] == ["docs/architecture.md"]


@pytest.mark.parametrize("block", of("python"), ids=named)
def test_python_can_be_parsed(block):
    ast.parse(block.text, block.page)


# ---- Python, on real ranks ----


class Launch:
    """The outcomes of blocks that share a launch, which is made when the first is asked for."""

    def __init__(self, wanted: Sequence[blocks.Block], count: int, environment: Mapping[str, str]):
        self._wanted, self._count, self._environment = wanted, count, environment
        self._faults: dict[str, str] = {}

    def require(self, block: blocks.Block, folder: Callable) -> None:
        """Fails, with what each rank says, if the block did not end on every rank."""
        if not self._faults:
            self._faults = ranks.launch(self._wanted, self._count, folder("blocks"), **self._environment)
        if self._faults[block.name]:
            pytest.fail(self._faults[block.name], pytrace=False)


@pytest.fixture(scope="module")
def two_ranks():
    return Launch(ON_TWO, 2, {"HVD_SPARSE_LOCAL_SIZE": "1"})


@pytest.fixture(scope="module")
def four_ranks():
    return Launch(ON_FOUR, 4, {})


@pytest.mark.thorough
@pytest.mark.parametrize("block", ON_TWO, ids=named)
def test_python_runs_on_two_ranks(block, two_ranks, tmp_path_factory):
    two_ranks.require(block, tmp_path_factory.mktemp)


@pytest.mark.thorough
@pytest.mark.parametrize("block", ON_FOUR, ids=named)
def test_python_runs_on_four_ranks(block, four_ranks, tmp_path_factory):
    four_ranks.require(block, tmp_path_factory.mktemp)


@pytest.mark.thorough
@pytest.mark.parametrize("page", RETURNING)
def test_a_rank_comes_back_as_the_page_says(page, tmp_path):
    for block in RETURNS:
        ranks.write(block, tmp_path)
    command = ["-m", "tests.keep_rank", "tests.docs.returning", page, str(tmp_path)]
    ended = launch.horovodrun(3, command, ranks.LIMIT)
    assert ended.status == 0 and (tmp_path / "returned").exists(), ended.output[-3000:]


# ---- commands ----


@pytest.mark.thorough
@pytest.mark.parametrize("block", of("sh"), ids=named)
def test_commands_are_there_and_take_their_options(block):
    assert commands.bash_accepts(block.text) == ""
    problems = {shlex.join(words): commands.problem(words) for words in commands.split(block.text)}
    assert not {command: told for command, told in problems.items() if told}


@pytest.mark.thorough
@pytest.mark.parametrize("command", RUN)
def test_a_command_runs(command):
    words = [word.removeprefix("ENV/bin/") for word in command.split()]
    assert words[:3] == ["horovodrun", "-np", "2"] and words[3] == "python"
    ended = launch.horovodrun(2, [*words[4:], *RUN[command]], ranks.LIMIT)
    assert ended.status == 0, ended.output[-3000:]


@pytest.mark.thorough
def test_commands_in_sentences_are_there_and_take_their_options():
    pages = [path for path in blocks.pages() if path.name != "CHANGELOG.md"]  # which tells of what was
    texts = [blocks.FENCED.sub("", path.read_text()) for path in pages]
    found = {" ".join(command.split()) for text in texts for command in INLINE.findall(text)}
    assert len(found) > 20
    problems = {command: commands.problem(shlex.split(command)) for command in sorted(found)}
    assert not {command: told for command, told in problems.items() if told}


# ---- each check can fail ----


WRONG = {
    "make trainings": "No rule",
    "make bench-nothing": "no benchmark",
    "python -m hvd_sparse.doctr": "no module",
    "python -m tests.budget --renewed": "has no --renewed",
    "horovodrun -np 2 python examples/none.py": "no file",
    "HVD_SPARSE_UNKNOWN=1 make test": "nothing reads",
    "pip install '.[nothing]'": "no extra",
    "tools/none.sh": "add how it is checked",
    "examples/launch/slurm.sh --host-file hosts -- python -m examples.keras_digits": "has no --host-file",
    "examples/launch/mpirun.sh --hostfile hosts -- python -m examples.nothing": "no module",
    "python -m pytest tests/docs/blocks.py": "no tests",
}


@pytest.mark.parametrize("command", WRONG)
def test_a_wrong_command_is_seen(command):
    assert WRONG[command] in commands.problem(shlex.split(command))


def test_blocks_are_found(tmp_path, monkeypatch):
    monkeypatch.setattr(blocks, "ROOT", tmp_path)
    (tmp_path / "page.md").write_text("One.\n\n```\nls\n```\n\n- two\n\n  ~~~ python\n  x = [\n  ~~~\n")
    first, second = blocks.collect()
    assert (first.name, first.line, first.language, first.text) == ("page.md 1", 4, "sh", "ls\n")
    assert (second.name, second.line, second.language, second.text) == ("page.md 2", 10, "python", "x = [\n")
