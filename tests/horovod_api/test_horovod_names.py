"""Every public name of Horovod exists, with Horovod's arguments, or says what to do instead."""

from __future__ import annotations

import importlib
import inspect

import horovod.tensorflow as horovod
import pytest

import hvd_sparse as hvd
from hvd_sparse.horovod_api import names as horovod_names
from tools import horovod_names as names

# Names that take Keras objects have tests of their arguments elsewhere; names that are refused take any arguments.
OTHER_ARGUMENTS = {"DistributedGradientTape", "DistributedOptimizer", "PartialDistributedGradientTape"}
SHARED = [
    name
    for name in names.public_names("horovod.tensorflow")
    if inspect.isfunction(getattr(horovod, name)) and name not in OTHER_ARGUMENTS
]


def test_no_name_is_missing():
    assert names.missing() == []


def test_the_page_is_what_the_command_makes():
    assert names.PAGE.read_text() == names.page(), "run .venv/bin/python -m tools.horovod_names"


def test_every_name_that_is_left_out_is_shown_by_horovod_and_has_a_reason():
    shown = {name for module in names.PLACES for name in dir(importlib.import_module(module))}
    assert set(names.ACCIDENTAL) <= shown and all(names.ACCIDENTAL.values())


def test_differences_are_told_of_names_that_are_there():
    for name in names.DIFFERENCES:
        assert hasattr(hvd, name), name


@pytest.mark.parametrize("name", SHARED)
def test_horovods_arguments_are_taken_in_horovods_order(name):
    theirs = inspect.signature(getattr(horovod, name)).parameters
    found = inspect.signature(getattr(hvd, name)).parameters
    if name == "init":  # Horovod passes all arguments to its library
        theirs = {"comm": None, "process_sets": None}
    assert list(found)[: len(theirs)] == list(theirs)
    required = {each for each, parameter in found.items() if parameter.default is parameter.empty}
    allowed = {each for each, parameter in theirs.items() if parameter and parameter.default is parameter.empty}
    assert required <= allowed


@pytest.mark.parametrize("name", sorted(horovod_names.REFUSED))
def test_what_is_of_no_use_says_what_to_do_instead(name):
    refused = getattr(hvd, name)
    with pytest.raises(NotImplementedError) as told:
        refused(0)
    assert str(told.value) == horovod_names.REFUSED[name] and f"hvd.{name}" in str(told.value)


def test_the_ops_are_horovods():
    for name in (
        "Average",
        "Sum",
        "Adasum",
        "Min",
        "Max",
        "Product",
        "ProcessSet",
        "global_process_set",
        "Compression",
    ):
        assert getattr(hvd, name) is getattr(horovod, name)
