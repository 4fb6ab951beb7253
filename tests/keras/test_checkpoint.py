import hashlib
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import hvd_sparse as hvd
from hvd_sparse import checkpoint

RECIPES = {
    "dense": hvd.recipes.dense(),
    "torus2d": hvd.recipes.torus2d(),
    "topk": hvd.recipes.topk(0.25),
    "hitopk": hvd.recipes.hitopk(0.25),
    "schedule": hvd.recipes.schedule([(0, hvd.recipes.topk(0.25)), (2, hvd.recipes.dense())]),
    "dense first": hvd.recipes.schedule([(0, hvd.recipes.dense()), (2, hvd.recipes.topk(0.25))]),
    "dense only": hvd.recipes.schedule([(0, hvd.recipes.dense()), (2, hvd.recipes.torus2d())]),
}
SHAPES = {"kernel": (3, 4), "bias": (4,), "scalar": ()}


def variables():
    return [keras.Variable(np.zeros(shape, "f4"), name=name) for name, shape in SHAPES.items()]


def gradients(step):
    generator = np.random.default_rng(step)
    return [tf.constant(generator.normal(size=shape).astype("f4")) for shape in SHAPES.values()]


def exchange_with(recipe, steps=0, first_step=0, **options):
    exchange = hvd.GradientExchange(RECIPES[recipe], **options)
    exchange.set_epoch(0)
    mine = variables()
    for step in range(first_step, first_step + steps):
        exchange(gradients(step), mine)
    return exchange, mine


def assert_kept(exchange, expected, scale=1.0):
    kept = exchange.residual_sum().residuals
    for name in SHAPES:
        np.testing.assert_array_equal(kept.get(name, np.zeros(SHAPES[name])), expected[name] * np.float32(scale))


@pytest.fixture
def saved(tmp_path):
    """A checkpoint of a sparse recipe, and the residuals when it was written."""
    exchange, _ = exchange_with("hitopk", steps=3)
    checkpoint.save(tmp_path / "residuals.npz", exchange)
    return tmp_path / "residuals.npz", exchange.residual_sum()


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("began", [False, pytest.param(True, marks=pytest.mark.thorough)])
def test_what_was_kept_goes_on_in_any_recipe(saved, recipe, began):
    path, kept = saved
    exchange, mine = exchange_with(recipe, steps=1 if began else 0)
    checkpoint.restore(path, exchange)
    if not began:
        exchange([tf.zeros(shape) for shape in SHAPES.values()], mine)
        return
    assert_kept(exchange, kept.residuals)
    assert exchange.step == kept.step == 3


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("began", [False, pytest.param(True, marks=pytest.mark.thorough)])
def test_nothing_is_lost_between_restoring_and_the_next_mean(saved, recipe, began):
    path, kept = saved
    exchange, mine = exchange_with(recipe, steps=1 if began else 0)
    checkpoint.restore(path, exchange)
    means = exchange([tf.zeros(shape) for shape in SHAPES.values()], mine)
    left = exchange.residual_sum().residuals
    for name, mean in zip(SHAPES, means, strict=True):
        np.testing.assert_array_equal(mean + left.get(name, np.zeros(SHAPES[name], "f4")), kept.residuals[name])


def test_what_is_carried_into_a_dense_recipe_can_be_saved_again(saved, tmp_path):
    path, kept = saved
    dense, _ = exchange_with("dense", steps=1)
    checkpoint.restore(path, dense)
    checkpoint.save(tmp_path / "again.npz", dense)
    sparse, _ = exchange_with("topk", steps=1)
    checkpoint.restore(tmp_path / "again.npz", sparse)
    assert_kept(sparse, kept.residuals)


def test_a_pending_restore_can_be_overtaken_by_another(saved, tmp_path):
    path, kept = saved
    other, _ = exchange_with("hitopk", steps=1)
    checkpoint.save(tmp_path / "other.npz", other)
    exchange, mine = exchange_with("topk")
    assert checkpoint.restore(tmp_path / "other.npz", exchange) is None
    assert checkpoint.restore(path, exchange) is None
    means = exchange([tf.zeros(shape) for shape in SHAPES.values()], mine)
    np.testing.assert_array_equal(means[0] + exchange.residual_sum().residuals["kernel"], kept.residuals["kernel"])


@pytest.mark.parametrize("limits", [{"bucket_bytes": 16, "first_bucket_bytes": 4}, {"bucket_bytes": 1 << 20}])
def test_buckets_may_change(saved, limits):
    path, kept = saved
    exchange, _ = exchange_with("topk", steps=1, **limits)
    checkpoint.restore(path, exchange)
    assert_kept(exchange, kept.residuals)


def test_the_number_of_ranks_may_change(saved):
    """With 4 ranks, the sum counts a quarter in the mean; with one rank, it counts in full."""
    path, kept = saved
    manifest, arrays = checkpoint.read(path)
    checkpoint.write(path, manifest | {"ranks": 4}, arrays)
    exchange, _ = exchange_with("topk", steps=1)
    assert checkpoint.restore(path, exchange) is False
    assert_kept(exchange, kept.residuals, 0.25)


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_same_exchange_goes_on_to_the_bit(tmp_path, recipe):
    whole, mine = exchange_with(recipe, steps=3)
    checkpoint.save(tmp_path / "residuals.npz", whole)
    expected = [whole(gradients(step), mine) for step in (3, 4)]
    resumed, mine = exchange_with(recipe)
    assert checkpoint.restore(tmp_path / "residuals.npz", resumed) is None
    for step, means in zip((3, 4), expected, strict=True):
        for first, second in zip(resumed(gradients(step), mine), means, strict=True):
            np.testing.assert_array_equal(first, second)
    began, mine = exchange_with(recipe, steps=1)
    assert checkpoint.restore(tmp_path / "residuals.npz", began) is True
    for first, second in zip(began(gradients(3), mine), expected[0], strict=True):
        np.testing.assert_array_equal(first, second)


def test_without_its_own_file_a_rank_goes_on_from_the_sum(saved):
    path, kept = saved
    path.with_name("residuals.npz.rank0of1").unlink()
    exchange, _ = exchange_with("hitopk", steps=1)
    with pytest.warns(UserWarning, match=r"rank 0: .*residuals.npz.rank0of1 is missing.*share the residuals equally"):
        assert checkpoint.restore(path, exchange) is False
    assert_kept(exchange, kept.residuals)


def test_a_rank_whose_own_file_is_damaged_is_told_of(saved):
    path, kept = saved
    own = path.with_name("residuals.npz.rank0of1")
    own.write_bytes(own.read_bytes()[:-100])
    exchange, _ = exchange_with("hitopk", steps=1)
    with pytest.warns(UserWarning, match=r"rank 0: .*residuals.npz.rank0of1 is (damaged|not an intact)"):
        assert checkpoint.restore(path, exchange) is False
    assert_kept(exchange, kept.residuals)


def test_a_ranks_own_state_is_not_that_of_all(saved):
    exchange, _ = exchange_with("hitopk", steps=1)
    with pytest.raises(OSError, match="holds the state of one rank"):
        checkpoint.restore(saved[0].with_name("residuals.npz.rank0of1"), exchange)


def test_a_rank_does_not_take_its_own_file_of_another_checkpoint(saved, tmp_path):
    path, kept = saved
    own = path.with_name("residuals.npz.rank0of1").read_bytes()
    exchange, _ = exchange_with("hitopk", steps=5)
    checkpoint.save(path, exchange)
    path.with_name("residuals.npz.rank0of1").write_bytes(own)
    again, _ = exchange_with("hitopk", steps=1)
    with pytest.warns(UserWarning, match="rank0of1 belongs to another checkpoint"):
        assert checkpoint.restore(path, again) is False
    assert_kept(again, exchange.residual_sum().residuals)


def test_own_files_can_be_left_out(tmp_path):
    exchange, _ = exchange_with("hitopk", steps=1)
    written = checkpoint.save(tmp_path / "residuals.npz", exchange, exact=False)
    assert [path.name for path in tmp_path.iterdir()] == ["residuals.npz"]
    assert written == {"residuals.npz": hashlib.sha256((tmp_path / "residuals.npz").read_bytes()).hexdigest()}
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        assert checkpoint.restore(tmp_path / "residuals.npz", exchange) is False


def test_steps_that_seeds_and_densities_follow_go_on(saved):
    path, _ = saved
    for recipe in ("hitopk", "topk"):
        exchange, _ = exchange_with(recipe, steps=1, bucket_bytes=16, first_bucket_bytes=16)
        checkpoint.restore(path, exchange)
        for state in exchange.states:
            (counter,) = [part.step for part in state.submodules if hasattr(part, "step")]
            assert counter == 3


def test_variables_under_new_names_are_matched_by_order(saved):
    path, kept = saved
    exchange = hvd.GradientExchange(RECIPES["topk"])
    renamed = [keras.Variable(np.zeros(shape, "f4"), name=f"new_{name}") for name, shape in SHAPES.items()]
    exchange(gradients(0), renamed)
    checkpoint.restore(path, exchange)
    for name in SHAPES:
        np.testing.assert_array_equal(exchange.residual_sum().residuals[f"new_{name}"], kept.residuals[name])


def test_other_variables_are_refused(saved):
    path, _ = saved
    exchange = hvd.GradientExchange(RECIPES["topk"])
    exchange([tf.ones([5])], [keras.Variable(np.zeros(5, "f4"), name="other")])
    with pytest.raises(ValueError, match=r"it holds kernel \[3, 4\], bias \[4\], .*here are other \[5\]"):
        checkpoint.restore(path, exchange)


def test_rows_hold_no_residual(tmp_path):
    table = keras.Variable(np.zeros((4, 2), "f4"), name="table")
    slices = tf.IndexedSlices(tf.ones([1, 2]), tf.constant([1]), tf.constant([4, 2]))
    exchange = hvd.GradientExchange(RECIPES["topk"])
    exchange([slices], [table])
    checkpoint.save(tmp_path / "residuals.npz", exchange)
    assert checkpoint.read(tmp_path / "residuals.npz")[1] == {}
    assert checkpoint.restore(tmp_path / "residuals.npz", exchange) is True


def test_variables_of_one_rank_are_saved_beside_it(tmp_path):
    exchange, _ = exchange_with("topk", steps=1)
    own = [keras.Variable([1.5], dtype="bfloat16"), tf.Variable([7], dtype=tf.uint32)]
    checkpoint.save(tmp_path / "residuals.npz", exchange, own_variables=own)
    own[0].assign([0.0])
    own[1].assign([0])
    assert checkpoint.restore(tmp_path / "residuals.npz", exchange, own_variables=own) is True
    assert float(own[0][0]) == 1.5 and int(own[1][0]) == 7


def test_an_optimizer_with_loss_scaling_is_saved_too(tmp_path):
    optimizer = hvd.LossScaleOptimizer(hvd.DistributedOptimizer(keras.optimizers.SGD(1.0)))
    optimizer.apply([tf.ones([2])], [keras.Variable([1.0, 1.0])])
    checkpoint.save(tmp_path / "residuals.npz", optimizer)
    assert checkpoint.restore(tmp_path / "residuals.npz", optimizer) is True


def test_before_the_first_exchange_there_is_nothing_to_save(tmp_path):
    with pytest.raises(RuntimeError, match="train at least one step"):
        checkpoint.save(tmp_path / "residuals.npz", hvd.GradientExchange())


def test_what_exchanges_nothing_is_refused(tmp_path):
    with pytest.raises(TypeError, match="Expected a distributed optimizer or a GradientExchange, got SGD"):
        checkpoint.save(tmp_path / "residuals.npz", keras.optimizers.SGD(1.0))


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "text", "format", "missing"])
def test_a_damaged_file_is_refused_and_state_stays(saved, damage):
    path, kept = saved
    data = bytearray(path.read_bytes())
    if damage == "flip":
        data[data.index(b"array0.npy") + 200] ^= 1
    elif damage == "cut":
        del data[len(data) // 2 :]
    elif damage == "empty":
        data.clear()
    elif damage == "text":
        data[:] = b"not an archive"
    path.write_bytes(data)
    if damage == "format":
        manifest, arrays = {"format": "another"}, {}
        checkpoint.write(path, manifest, arrays)
    elif damage == "missing":
        path.unlink()
    exchange, _ = exchange_with("hitopk", steps=2)
    before = exchange.rank_state().values
    with pytest.raises(OSError, match="Could not read the residuals. rank 0: "):
        checkpoint.restore(path, exchange)
    for name, value in exchange.rank_state().values.items():
        np.testing.assert_array_equal(value, before[name])


def test_objects_are_never_unpickled(tmp_path):
    np.savez(tmp_path / "residuals.npz", manifest=np.array([{"a": 1}], dtype=object))
    with pytest.raises(OSError, match="not an intact archive"):
        checkpoint.read(tmp_path / "residuals.npz")


def test_a_write_that_fails_leaves_the_old_file_and_no_other(saved, monkeypatch):
    path, kept = saved
    before = path.read_bytes()

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez", full)
    exchange, _ = exchange_with("hitopk", steps=1)
    with pytest.raises(OSError, match="Could not write the residuals. rank 0: .*No space left"):
        checkpoint.save(path, exchange)
    assert path.read_bytes() == before
    assert not list(path.parent.glob("*.tmp"))
