"""The saved state of an exchange: names on disk stay the same, however classes and variables are renamed.

`names_on_disk.json` is what commit 0416afa wrote on ranks 2 x 2: accounts, variables of a rank's state, and counters. A
part or variable that is renamed keeps its name there; the file is not changed.
"""

import dataclasses
import inspect
import json
import pathlib

import pytest
import tensorflow as tf

from hvd_sparse import aggregators, recipes
from hvd_sparse.aggregators import Aggregator
from hvd_sparse.compression import error_feedback, momentum, quantizers, selectors
from hvd_sparse.exchange import state
from hvd_sparse.exchange.plan import make_plan
from hvd_sparse.exchange.planned import PlannedExchange
from hvd_sparse.exchange.state import RankState
from hvd_sparse.spec import describe
from tests import threads

ON_DISK = json.loads(pathlib.Path(__file__).with_name("names_on_disk.json").read_text(encoding="utf8"))
SHAPES = {"matrix": (40, 30), "bias": (30,), "vector": (700,)}
RECIPES = {
    "dense": recipes.dense(),
    "torus2d": recipes.torus2d(),
    "topk": recipes.topk(0.05),
    "topk16": recipes.topk(0.05, "float16"),
    "mstopk": recipes.mstopk(0.05),
    "hitopk": recipes.hitopk(0.05),
    "sparcml": recipes.sparcml(0.05, collective="dynamic"),
    "sparcml bits": recipes.sparcml(0.05, bits=4),
    "sparcml published": recipes.sparcml(0.05, as_published=True, bits=4, collective="split_allgather"),
    "buckets": recipes.sparcml_buckets(2, 64, bits=None, collective="recursive_doubling"),
    "buckets bits": recipes.sparcml_buckets(2, 64),
    "buckets published": recipes.sparcml_buckets(2, 64, as_published=True, collective="allgather"),
    "schedule": recipes.schedule([(0, recipes.hitopk(0.05)), (1, recipes.torus2d()), (2, recipes.topk(0.02))]),
    "schedule dense first": recipes.schedule([(0, recipes.torus2d()), (2, recipes.hitopk(0.05))]),
    "auto": recipes.auto(0.05, candidates=("hitopk",)),
}
# Steps that this commit left out of the sums: those of the outermost part.
OUTERMOST = {name: ["_summing_step"] for name in ("sparcml", "sparcml bits", "buckets", "buckets bits")}


def planned(recipe: Aggregator, grid) -> PlannedExchange:
    gradients = {name: tf.zeros(shape) for name, shape in SHAPES.items()}
    plan = make_plan(gradients, SHAPES, 5000, 2000)
    return PlannedExchange(recipe, plan, grid, "disk", None, learning_rate=lambda: 0.1)


def on_ranks(recipe: Aggregator, function):
    """The results of a function of the exchange on each of 2 x 2 ranks."""
    return threads.run(4, 2, lambda grid: function(planned(recipe, grid)))


@pytest.mark.parametrize("name", ON_DISK)
def test_a_state_that_an_earlier_commit_has_saved_fits(name):
    saved = ON_DISK[name]

    def put_back(exchange):
        own = state.rank_state(exchange)
        assert saved["account"] == own.account
        old = dict(zip(saved["variables"], own.values.values(), strict=True))
        total = state.residual_sum(exchange)
        assert sorted(total.counters) == sorted([*saved["counters"], *OUTERMOST.get(name, [])])
        return state.restore(exchange, total, RankState(saved["account"], old))

    assert on_ranks(RECIPES[name], put_back) == [True] * 4


def test_a_state_of_another_recipe_does_not_fit():
    def put_back(exchange):
        own = state.rank_state(exchange)
        other = {**own.account, "recipe": describe(RECIPES["hitopk"])}
        return state.restore(exchange, state.residual_sum(exchange), RankState(other, own.values))

    assert on_ranks(RECIPES["mstopk"], put_back) == [False] * 4


def parts():
    """All classes that an account can name."""
    modules = [aggregators, error_feedback, momentum, quantizers, selectors, recipes]
    found = {value for module in modules for _, value in inspect.getmembers(module, dataclasses.is_dataclass)}
    return sorted((each for each in found if isinstance(each, type)), key=lambda each: each.__name__)


def test_every_part_has_a_name_of_its_own_on_disk():
    names = [vars(part)["disk_name"] for part in parts()]
    assert len(names) > 12 and len(set(names)) == len(names)
