"""Changes to recipes, every two of them in both orders: they give the same recipe, or are refused for a true reason."""

import itertools

import pytest

from hvd_sparse import recipes

INSIDE = {
    "momentum_corrected": lambda recipe: recipes.momentum_corrected(recipe, 0.9),
    "updates": recipes.updates,
    "updates, every 8": lambda recipe: recipes.updates(recipe, ahead=True, every=8),
    "updates, gain ratio": lambda recipe: recipes.updates(recipe, ahead=True, gain_ratio=True),
}
AROUND = {
    "warmup": lambda recipe: recipes.warmup(recipe, 10),
    "dense_below": lambda recipe: recipes.dense_below(recipe, 8),
}
CHANGES = {**INSIDE, **AROUND, "schedule": lambda recipe: recipes.schedule([(0, recipe), (3, recipes.torus2d())])}
BASES = {
    "hitopk": lambda: recipes.hitopk(0.01),
    "topk": lambda: recipes.topk(0.01),
    "dropping": lambda: recipes.dropping(0.01),
    "dct": recipes.dct,
    "blocks": recipes.blocks,
    "sparcml": lambda: recipes.sparcml(0.01),
    "auto": lambda: recipes.auto(0.01),
    "dgc": recipes.dgc,
    "recommended": recipes.recommended,
    "diloco": recipes.diloco,
    "as published": lambda: recipes.sparcml(0.01, as_published=True),
    "dense": recipes.dense,
    "mean": recipes.mean,
}
GATHERED = ("hitopk", "topk", "dropping", "dct", "blocks")  # what they send can wait for several steps

MOMENTUM = "momentum on the sender's side already"
UPDATES = "sends the optimizer's updates already"
SCHEDULE = "a schedule: change the recipes in it"
NO_RESIDUAL = "which keeps no residual: use it unchanged"


def refusal(outer: str, inner: str) -> str | None:
    """Why a change of a changed `hitopk` is refused; None if it is not."""
    if outer == "schedule":
        return "cannot be a stage of a schedule" if inner == "schedule" else None
    if outer == "warmup" and inner == "schedule":
        return "Schedule has no density"
    if outer not in INSIDE:
        return None
    return {"schedule": SCHEDULE, "momentum_corrected": MOMENTUM}.get(inner, UPDATES if inner in INSIDE else None)


@pytest.mark.parametrize(("outer", "inner"), itertools.product(CHANGES, CHANGES))
def test_two_changes_are_made_or_refused_for_a_true_reason(outer, inner):
    changed, reason = CHANGES[inner](recipes.hitopk(0.01)), refusal(outer, inner)
    if reason is None:
        CHANGES[outer](changed)
        return
    with pytest.raises((ValueError, TypeError), match=reason):
        CHANGES[outer](changed)


@pytest.mark.parametrize(
    ("inside", "base"),
    [*itertools.product(INSIDE, GATHERED), ("updates", "auto"), ("updates, gain ratio", "auto")],
)
@pytest.mark.parametrize("around", AROUND)
def test_what_is_inside_and_around_may_be_said_in_either_order(inside, around, base):
    one = CHANGES[inside](CHANGES[around](BASES[base]()))
    assert one == CHANGES[around](CHANGES[inside](BASES[base]()))
    assert one != CHANGES[around](BASES[base]())


@pytest.mark.parametrize(
    ("change", "base", "reason"),
    [
        *((change, base, NO_RESIDUAL) for change in INSIDE for base in ("dense", "mean")),
        *((change, "dgc", MOMENTUM) for change in INSIDE),
        *((change, base, UPDATES) for change in INSIDE for base in ("recommended", "diloco")),
        *((change, "as published", "multiplies gradients by the learning rate") for change in list(INSIDE)[1:]),
        ("momentum_corrected", "auto", "which may choose dense candidates"),
        ("updates, every 8", "auto", "Auto exchanges in every step"),
        ("updates, every 8", "sparcml", "SparseAllReduce exchanges in every step"),
        *(("warmup", base, "and so needs no warm-up") for base in ("dense", "mean")),
        *(("dense_below", base, "use it without DenseBelow") for base in ("dense", "mean")),
    ],
)
def test_what_a_change_cannot_change_is_refused_for_a_true_reason(change, base, reason):
    with pytest.raises((ValueError, TypeError), match=reason):
        CHANGES[change](BASES[base]())
    for around in AROUND.values():
        if base not in ("dense", "mean"):
            with pytest.raises((ValueError, TypeError), match=reason):
                CHANGES[change](around(BASES[base]()))


@pytest.mark.parametrize("base", BASES)
def test_every_recipe_is_one_stage_of_a_schedule(base):
    recipes.schedule([(0, BASES[base]()), (3, recipes.torus2d())])
