"""What lars may import: it works without Horovod and does not depend on the exchange."""

import re

import pytest

from tests.test_house_rules import Sources, imports, package, parse

FORBIDDEN = re.compile(r"(?!hvd_sparse\.transport\.communicator\b)(hvd_sparse|datacache|horovod)\b")


def foreign_imports(modules: Sources) -> list[str]:
    return [
        f"{name} imports {imported}"
        for name, tree in modules.items()
        for imported in imports(tree)
        if FORBIDDEN.match(imported)
    ]


def test_lars_imports_of_hvd_sparse_only_the_communicator():
    assert foreign_imports(package("lars")) == []


@pytest.mark.parametrize(
    "text",
    [
        "from hvd_sparse import recipes",
        "def f():\n    import horovod.tensorflow",
        "import datacache",
        "import hvd_sparse",
    ],
)
def test_another_import_is_seen(text):
    assert len(foreign_imports(parse({"lars": text}))) == 1


def test_the_communicator_is_let_through():
    text = "from hvd_sparse.transport import communicator\nfrom hvd_sparse.transport.communicator import Communicator"
    assert foreign_imports(parse({"choice": text})) == []
