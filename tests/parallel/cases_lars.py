"""LARS and LAMB on real ranks: shared norms, the choice to share them, and every recipe with them."""

from __future__ import annotations

import contextlib
import functools
import io

import keras
import numpy as np
import tensorflow as tf

import hvd_sparse as hvd
import lars
from hvd_sparse import topology
from lars import choice as choices
from lars.parallel import parallel_map
from tests import members
from tests.lars import layers
from tests.lars.members import MEMBERS, stepper
from tests.parallel.cases import case, thorough
from tests.parallel.training import assert_replicas_equal, on_every_rank, own_data

STEPS = 3


def _stepped(optimizer, model, traced=True, own=False):
    """Weights and slots after some steps on the same gradients, or on each rank's own."""
    variables = layers.variables_of(model)
    step = stepper(optimizer, variables, traced)
    for number in range(STEPS):
        if hasattr(optimizer, "set_epoch"):
            optimizer.set_epoch(min(number, 1))
        step(layers.gradients_of(model, number + (100 * hvd.rank() if own else 0)))
    return [*variables, *optimizer.variables]


@case(
    ranks=(2, 4),
    over=lambda ranks: [
        {"name": name, "model": model, "group": group, "traced": traced}
        for name, model in (("LARS", "resnet"), ("LAMB", "transformer"))
        for group, traced in (("world", True), ("world", False), ("node", True))
    ],
    quick=lambda ranks, name, model, group, traced: ranks == 2 and traced,
)
def shared_norms_have_the_same_bits(name, model, group, traced):
    """Through Horovod and through shared memory, in a graph and eagerly."""
    member = MEMBERS[name]
    communicator = getattr(topology, group)()
    shared = member.make(parallel=communicator, **member.settings)
    ours = _stepped(shared, model, traced)
    theirs = _stepped(member.make(parallel=False, **member.settings), model, traced)
    for first, second in zip(ours, theirs, strict=True):
        assert first.numpy().tobytes() == second.numpy().tobytes()
    assert str(shared.choice) == f"shared as told: by {hvd.size()} ranks"
    assert_replicas_equal(ours)


@case(ranks=(4,))
def nodes_share_by_themselves():
    hvd.init(local_size=2)
    assert list(choices.ways()) == [choices.ALONE, choices.NODE, choices.WORLD]
    member = MEMBERS["LARS"]
    ours = _stepped(member.make(parallel=topology.node()), "resnet")
    theirs = _stepped(member.make(parallel=False), "resnet")
    for first, second in zip(ours, theirs, strict=True):
        assert first.numpy().tobytes() == second.numpy().tobytes()


@case(ranks=(2, 4), over=lambda ranks: [{"name": name} for name in ("LARS", "LAMB")])
def a_measured_choice_is_the_same_on_every_rank_and_says_why(name):
    optimizer = MEMBERS[name].make()
    assert optimizer.choice is None
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        ours = _stepped(optimizer, "resnet")
    chosen = optimizer.choice
    assert set(chosen.milliseconds) == {choices.ALONE, choices.WORLD}
    assert chosen.way in chosen.milliseconds and (chosen.communicator is None) == (chosen.way == choices.ALONE)
    assert len({str(other) for other in on_every_rank(str(chosen))}) == 1
    elements = sum(weight.size for weight in layers.weights_of("resnet"))
    assert said.getvalue() == (
        f"hvd_sparse: {name}, norms of {elements:,} elements, {chosen}\n" if hvd.rank() == 0 else ""
    )
    theirs = _stepped(MEMBERS[name].make(parallel=False), "resnet")
    for first, second in zip(ours, theirs, strict=True):
        assert first.numpy().tobytes() == second.numpy().tobytes()


@case(
    ranks=(2, 4),
    over=lambda ranks: [
        {"name": {2: "LARS", 4: "LAMB"}[ranks], "recipe": recipe}
        for recipe in (("dense", "topk", "sparcml_buckets", "schedule") if ranks == 2 else ("torus2d", "hitopk"))
    ],
    quick=lambda ranks, name, recipe: recipe == "topk",
)
def every_recipe_around_shared_norms(name, recipe):
    """Each rank has its own gradients; replicas must agree, and sharing the norms must not change the result."""
    results = []
    for parallel in (topology.world(), False):
        aggregator = (
            members.switching(["dense", "topk"], 0.25, "float32")
            if recipe == "schedule"
            else members.AGGREGATORS[recipe].make(0.25, "float32")
        )
        member = MEMBERS[name]
        optimizer = hvd.DistributedOptimizer(
            member.make(parallel=parallel, **member.settings), aggregator=aggregator, name=f"{recipe}.{bool(parallel)}"
        )
        results.append(_stepped(optimizer, "transformer", own=True))
        assert_replicas_equal(results[-1])
    for first, second in zip(*results, strict=True):
        assert first.numpy().tobytes() == second.numpy().tobytes()


@case(ranks=(2,), over=lambda ranks: [{"name": name} for name in ("LARS", "LAMB")])
def a_loop_of_one_s_own_makes_the_slots_in_its_graph(name):
    made, kept = [MEMBERS[name].make(parallel=True) for _ in range(2)], []
    for optimizer, early in zip(made, (True, False), strict=True):
        variables = layers.variables_of("transformer")
        gradients = [tf.constant(each) for each in layers.gradients_of("transformer", 0)]
        if early:
            optimizer.build(variables)
        step = tf.function(functools.partial(optimizer.apply, gradients, variables), autograph=False)
        step()
        step()
        kept.append(variables)
    assert_replicas_equal(kept[0])
    for first, second in zip(*kept, strict=True):
        assert first.numpy().tobytes() == second.numpy().tobytes()


@case(ranks=(2,))
def the_tape_before_shared_norms():
    variables = layers.variables_of("transformer")
    weights = [tf.constant(each) for each in layers.gradients_of("transformer", hvd.rank())]
    optimizer = lars.LARS(parallel=topology.world())

    @tf.function(autograph=False)
    def step():
        with tf.GradientTape() as tape:
            pairs = zip(variables, weights, strict=True)
            total = tf.add_n([tf.reduce_sum(variable * weight) for variable, weight in pairs])
        tape = hvd.DistributedGradientTape(tape, aggregator=hvd.recipes.topk(0.25))
        optimizer.apply(tape.gradient(total, [variable.value for variable in variables]), variables)

    optimizer.build(variables)
    step()
    step()
    assert_replicas_equal(variables, optimizer.variables)


@case(ranks=(2,))
def rows_of_embeddings():
    """Rows of all ranks are averaged; decay and momentum then also change rows that no rank has touched."""
    table, plain = (layers.variable("a/embeddings", np.ones((6, 3), "f4")) for _ in range(2))
    optimizer = hvd.DistributedOptimizer(lars.LARS(parallel=topology.world()))
    rows = tf.constant([hvd.rank(), 3, hvd.rank()])
    optimizer.apply([tf.IndexedSlices(tf.ones([3, 3]), rows, tf.constant([6, 3]))], [table])
    mean = np.zeros((6, 3), "f4")
    np.add.at(mean, [0, 3, 0, 1, 3, 1], 0.5)
    lars.LARS(parallel=False).apply([tf.constant(mean)], [plain])
    np.testing.assert_array_equal(table, plain)
    assert_replicas_equal([table])


@case(ranks=(2,))
def local_variables_have_norms_of_their_own():
    """Their gradients differ between ranks, so that no rank can compute part of another rank's norms."""
    results = []
    for parallel in (topology.world(), False):
        shared = layers.variable("shared/kernel", np.ones(70_000, "f4"))
        local = layers.variable("local/kernel", np.full(70_000, 1.0 + hvd.rank(), "f4"))
        optimizer = hvd.DistributedOptimizer(lars.LARS(0.5, parallel=parallel), name=f"local{bool(parallel)}")
        optimizer.register_local_var(local)
        own = tf.constant(np.random.default_rng(hvd.rank()).standard_normal(70_000).astype("f4"))
        optimizer.apply([own, own], [shared, local])
        results.append([shared.numpy(), local.numpy()])
        assert_replicas_equal([shared])
    for first, second in zip(*results, strict=True):
        np.testing.assert_array_equal(first, second)
    assert len({str(value) for value in on_every_rank(float(results[0][1][0]))}) == 2


@case(ranks=(2,))
def a_skipped_step_is_skipped_by_all():
    variable = layers.variable("dense/kernel", np.ones(2, "f4"))
    inner = hvd.DistributedOptimizer(lars.LAMB(parallel=topology.world()), aggregator=hvd.recipes.topk(0.5))
    optimizer = hvd.LossScaleOptimizer(inner, initial_scale=4.0)
    step = stepper(optimizer, [variable])
    step([tf.constant([4.0, 8.0])])
    before = variable.numpy()
    step([tf.constant([np.inf if hvd.rank() == 1 else 1.0, 1.0])])
    np.testing.assert_array_equal(variable, before)
    step([tf.constant([4.0, 8.0])])
    assert (variable.numpy() != before).any()
    assert_replicas_equal([variable], inner.variables)


@case(
    ranks=(2, 4),
    over=lambda ranks: [{"name": "LARS", "policy": 16} if ranks == 2 else {"name": "LAMB", "policy": 32}],
    quick=thorough,
)
def fit_with_everything(name, policy):
    """Accumulation, clipping, a schedule, moving averages and mixed precision with a measured choice."""
    keras.config.set_dtype_policy("mixed_float16" if policy == 16 else "float32")
    try:
        x, y = own_data()
        dense = keras.layers.Dense
        model = keras.Sequential([keras.Input((6,)), dense(16, "tanh"), dense(2, dtype="float32")])
        rates = keras.optimizers.schedules.CosineDecay(0.5, 100)
        options = {"gradient_accumulation_steps": 2, "global_clipnorm": 1.0, "use_ema": True}
        optimizer = MEMBERS[name].make(learning_rate=rates, **options)
        model.compile(hvd.DistributedOptimizer(optimizer, aggregator=hvd.recipes.hitopk(0.25)), "mse")
        broadcast = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
        model.fit(x, y, batch_size=8, epochs=3, verbose=0, callbacks=[broadcast])
        assert optimizer.choice.milliseconds
        assert all(np.isfinite(weight).all() for weight in model.get_weights())
        assert_replicas_equal(model.trainable_variables, optimizer.variables)
    finally:
        keras.config.set_dtype_policy("float32")


@case(ranks=(2,))
def ranks_that_update_different_things_are_told():
    try:
        lars.LARS(exclude=["bias"] if hvd.rank() else []).apply(
            [tf.ones([3])], [layers.variable("dense/kernel", np.ones(3, "f4"))]
        )
    except ValueError as error:
        assert "The ranks disagree on what LARS updates" in str(error) and "exclude" in str(error)
    else:
        raise AssertionError("expected the ranks to be told")


@case(ranks=(2, 4), over=lambda ranks: [{"traced": traced} for traced in (True, False)])
def a_long_tensor_is_mapped_in_pieces(traced):
    values = np.random.default_rng(0).standard_normal(1000).astype("f4")

    def squares(communicator):
        def step(tensor):
            return parallel_map(lambda piece: tf.reduce_sum(piece**2), [tensor, tensor[:1]], communicator, 64)

        # A graph squares with another operation than eager code does, and the rounding may differ.
        return (tf.function(step, autograph=False) if traced else step)(tf.constant(values))

    for shared, alone in zip(squares(topology.world()), squares(None), strict=True):
        np.testing.assert_array_equal(shared, alone)
    np.testing.assert_allclose(tf.reduce_sum(squares(topology.world())[0]), np.sum(values**2), rtol=1e-6)
