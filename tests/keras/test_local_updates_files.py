"""Slots kept by the exchange, in files of the model; and residuals whose unit changes."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import hvd_sparse as hvd
from hvd_sparse.exchange import sender_side
from hvd_sparse.exchange.state import WEIGHTS
from hvd_sparse.optimizers import without_slots
from tests import threads
from tests.keras.nodes import OPTIMIZERS
from tests.keras.test_local_updates import distributed, some
from tests.keras.test_momentum_files import compiled, fitted


def sending(density=0.25):
    return hvd.recipes.updates(hvd.recipes.topk(density))


@pytest.mark.parametrize("name", some(OPTIMIZERS, "momentum", "Adagrad", "LARS"))
def test_what_is_consolidated_is_what_the_optimizer_would_hold(name):
    """All elements are sent, so that the exchange's slots equal the plain optimizer's."""
    make = OPTIMIZERS[name][0]
    keras.utils.set_random_seed(0)
    own = fitted(compiled(hvd.DistributedOptimizer(make(), aggregator=sending(1.0))))
    hvd.consolidate(own)
    keras.utils.set_random_seed(0)
    plain = fitted(compiled(make()))
    gathered = without_slots.of(own.optimizer).gathered
    assert len(own.optimizer.variables) == 2, "no slots but for the shard"
    for held, expected in zip(gathered.variables[2:], plain.optimizer.variables[2:], strict=True):
        np.testing.assert_allclose(held, expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    "name", some(["Nesterov", "AdamW", "RMSprop", "Adagrad", "LARS", "LAMB", "Muon"], "AdamW", "LAMB")
)
def test_a_file_of_any_optimizer_goes_on(name, tmp_path):
    make = OPTIMIZERS[name][0]
    keras.utils.set_random_seed(0)
    plain = fitted(compiled(make()))
    plain.save(tmp_path / "plain.keras")
    own = hvd.load_model(tmp_path / "plain.keras", aggregator=sending(1.0))
    fitted(own), fitted(plain)
    np.testing.assert_allclose(own.get_weights()[0], plain.get_weights()[0], rtol=1e-5)
    hvd.consolidate(own)
    own.save(tmp_path / "own.keras")
    back = keras.models.load_model(tmp_path / "own.keras")
    fitted(back), fitted(plain)
    np.testing.assert_allclose(back.get_weights()[0], plain.get_weights()[0], rtol=1e-5)


def test_a_file_that_would_lack_the_slots_is_refused(tmp_path):
    model = fitted(compiled(hvd.DistributedOptimizer(keras.optimizers.Adagrad(0.1), aggregator=sending())))
    with pytest.raises(RuntimeError, match="before the model is saved, call hvd.consolidate"):
        model.save(tmp_path / "model.keras")
    hvd.consolidate(model)
    model.save(tmp_path / "model.keras")


RATE, RANKS = 0.25, 4


@pytest.mark.parametrize("first, then", [("gradients", "updates"), ("updates", "gradients"), ("updates", "updates")])
@pytest.mark.parametrize("before_the_first_step", [True, False])
def test_nothing_is_lost_where_the_unit_changes(first, then, before_the_first_step):
    """SGD is linear: all gradients times the learning rate equal the change of the weights plus the residuals."""
    recipes = {"gradients": hvd.recipes.hitopk(0.1), "updates": hvd.recipes.updates(hvd.recipes.hitopk(0.1))}

    def gradient(rank, step):
        return np.random.default_rng([rank, step]).integers(-8, 9, 40).astype("f4")

    def one_rank(grid):
        variable = keras.Variable(np.zeros(40, "f4"), name="v")
        optimizers = [distributed(keras.optimizers.SGD(RATE), recipes[name], grid, name=name) for name in (first, then)]
        one, other = (optimizer.exchange for optimizer in optimizers)
        one._of_optimizer = other._of_optimizer = (lambda: RATE, *one._of_optimizer[1:])
        step = 0
        for _ in range(3):
            optimizers[0].apply([tf.constant(gradient(grid.world.rank, step))], [variable])
            step += 1
        if not before_the_first_step:
            optimizers[1].apply([tf.constant(gradient(grid.world.rank, step))], [variable])
            step += 1
            kept = other.residual_sum()
            factor = 1.0 if kept.unit == WEIGHTS else RATE
            variable.assign_sub(factor * kept.residuals["v"] / RANKS)  # `restore` replaces these residuals
        total = one.residual_sum()
        assert total.unit == ("weights" if first == "updates" else "gradients")
        other.restore(total)
        for _ in range(2):
            optimizers[1].apply([tf.constant(gradient(grid.world.rank, step))], [variable])
            step += 1
        kept = other.residual_sum()
        factor = 1.0 if kept.unit == WEIGHTS else RATE
        return variable.numpy(), factor * kept.residuals["v"] / RANKS, step

    for weights, kept, steps in threads.run(RANKS, 2, one_rank):
        given = np.mean([sum(gradient(rank, step) for step in range(steps)) for rank in range(RANKS)], axis=0)
        np.testing.assert_allclose(weights - kept, -RATE * given, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", some(["Adam", "LARS", "LAMB", "Adafactor"], "Adam", "LAMB", "Adafactor"))
def test_a_step_of_updates_resumes_to_the_bit(name):
    def one_rank(grid):
        variables = [keras.Variable(np.ones((8, 5), "f4"), name="v") for _ in range(2)]
        recipe = hvd.recipes.updates(hvd.recipes.hitopk(0.1))
        made = [distributed(OPTIMIZERS[name][0](), recipe, grid, name=f"resumed{each}") for each in range(2)]

        def gradient(step):
            return tf.constant(np.random.default_rng([grid.world.rank, step]).standard_normal((8, 5)), tf.float32)

        for step in range(3):
            made[0].apply([gradient(step)], [variables[0]])
        variables[1].assign(variables[0])
        made[1].iterations.assign(made[0].iterations)
        made[1].exchange.restore(made[0].exchange.residual_sum(), made[0].exchange.rank_state())
        for step in range(3, 5):
            for optimizer, variable in zip(made, variables, strict=True):
                optimizer.apply([gradient(step)], [variable])
        return [variable.numpy() for variable in variables]

    for one, other in threads.run(4, 2, one_rank):
        np.testing.assert_array_equal(one, other)


def test_slots_of_whole_variables_keep_their_names_on_disk():
    """As commit 0416afa wrote them; Keras's Adafactor gives one name to two slots."""

    def one_rank(grid):
        optimizer = distributed(keras.optimizers.Adafactor(0.1), hvd.recipes.updates(hvd.recipes.hitopk(0.1)), grid)
        optimizer.apply([tf.ones((8, 5))], [keras.Variable(np.ones((8, 5), "f4"), name="v")])
        return [name for name in optimizer.exchange.rank_state().values if "shard_0" in name]

    assert threads.run(1, 1, one_rank) == [["bucket0.shard_0", "bucket0.shard_0_2", "bucket0.shard_0_velocity"]]


@pytest.mark.parametrize("name", some(["Adam", "LARS", "LAMB"], "LAMB"))
@pytest.mark.parametrize("ranks, local_size", [(4, 2), (6, 3), (2, 1), (1, 1)])
def test_the_mean_of_the_slots_goes_on_on_another_number_of_ranks(name, ranks, local_size):
    shapes, recipe = {"matrix": (8, 5), "bias": (7,)}, hvd.recipes.updates(hvd.recipes.hitopk(0.1))

    def stepped(grid, optimizer, steps):
        variables = [keras.Variable(np.ones(shape, "f4"), name=each) for each, shape in shapes.items()]
        for step in range(steps):
            random = np.random.default_rng([grid.world.rank, step])
            mine = [tf.constant(random.standard_normal(shape), tf.float32) for shape in shapes.values()]
            optimizer.apply(mine, variables)
        return optimizer.exchange

    def before(grid):
        exchange = stepped(grid, distributed(OPTIMIZERS[name][0](), recipe, grid, name="moving"), 3)
        return sender_side.gather_slots(exchange)

    found = threads.run(4, 2, before)[0]
    assert all(value.any() for held in found.values() for value in held.values())

    def after(grid):
        exchange = stepped(grid, distributed(OPTIMIZERS[name][0](), recipe, grid, name="moved"), 1)
        for bucket in exchange.planned.buckets:
            bucket.give_slots(found if grid.world.rank == 0 else {})
        return sender_side.gather_slots(exchange)

    for gone_on in threads.run(ranks, local_size, after):
        for slot, held in found.items():
            for each, value in held.items():
                np.testing.assert_allclose(gone_on[slot][each], value, rtol=1e-6)


class Falling(keras.optimizers.schedules.LearningRateSchedule):
    """A schedule without a config, as in scripts that save no optimizer."""

    def __call__(self, step):
        return 0.5 / (1.0 + tf.cast(step, tf.float32))


def test_a_schedule_is_followed_and_need_not_be_one_that_can_be_saved():
    own, plain = (keras.Variable(np.ones(4, "f4")) for _ in range(2))
    optimizers = [
        hvd.DistributedOptimizer(keras.optimizers.Adam(Falling()), aggregator=sending(1.0)),
        keras.optimizers.Adam(Falling()),
    ]
    for step in range(3):
        for optimizer, variable in zip(optimizers, (own, plain), strict=True):
            optimizer.apply([tf.constant([1.0, -2.0, 3.0, 0.5]) * (step + 1.0)], [variable])
    np.testing.assert_allclose(own, plain, rtol=1e-6)
    store = {}
    hvd.consolidate(type("Model", (), {"optimizer": optimizers[0]})())
    optimizers[0].save_own_variables(store)
    assert len(store) == len(optimizers[1].variables)
