import numpy as np
import pytest
import tensorflow as tf

from hvd_sparse import recipes
from hvd_sparse.exchange import plan as buckets
from hvd_sparse.optimizers.variables import unique_names
from hvd_sparse.spec import Place, Segment, Spec, shards
from hvd_sparse.transport.communicator import Grid

WHOLE = Spec(5, Grid.lone(), segments=(Segment("b", (3,)), Segment("a", (2,))))


def plan_of(gradients, **limits):
    return buckets.make_plan(gradients, {name: gradient.shape for name, gradient in gradients.items()}, **limits)


def names(plan):
    return [[segment.name for segment in bucket.segments] for bucket in plan.buckets]


def ones(count, dtype=tf.float32):
    return tf.ones([count], dtype)


def slices(rows, width):
    return tf.IndexedSlices(tf.ones([1, width]), tf.constant([0]), tf.constant([rows, width]))


def test_eager_gradients_become_ready_in_reverse():
    assert names(plan_of({"a": ones(1), "b": ones(1), "c": ones(1)})) == [["c", "b", "a"]]


def test_in_a_graph_the_order_is_that_in_which_gradients_are_computed():
    order = []

    @tf.function
    def trace():
        first = tf.random.normal([2])
        second = first * 2.0
        third = second * 2.0
        order.extend(buckets.ready_order({"third": third, "first": first, "second": second}))

    trace()
    assert order == ["first", "second", "third"]


def test_backward_pass_is_planned_from_the_last_layer_to_the_first():
    weights = {name: tf.Variable(tf.ones([4, 4]), name=name) for name in ("first", "second", "third")}
    order = []

    @tf.function
    def trace():
        with tf.GradientTape() as tape:
            value = tf.ones([1, 4])
            for weight in weights.values():
                value = tf.tanh(value @ weight)
        gradients = tape.gradient(value, list(weights.values()))
        order.extend(buckets.ready_order(dict(zip(weights, gradients, strict=True))))

    trace()
    assert order == ["third", "second", "first"]


def test_gradients_of_an_outer_graph_keep_their_order_in_a_branch():
    order = []

    @tf.function
    def trace(branch):
        early = tf.random.normal([2])
        late = early + 1.0

        def inside():
            order.extend(buckets.ready_order({"late": late, "early": early}))
            return late

        return tf.cond(branch, inside, lambda: early)

    trace(tf.constant(True))
    assert order == ["early", "late"]


def test_the_first_bucket_is_small_and_the_later_ones_large():
    gradients = {name: ones(10) for name in "abcdefgh"}
    plan = plan_of(gradients, bucket_bytes=120, first_bucket_bytes=40)
    assert names(plan) == [["h"], ["g", "f", "e"], ["d", "c", "b"], ["a"]]


def test_the_first_bucket_is_not_closed_before_it_holds_enough():
    plan = plan_of({"a": ones(10), "kernel": ones(20), "bias": ones(1)}, bucket_bytes=120, first_bucket_bytes=40)
    assert names(plan) == [["bias", "kernel"], ["a"]]


@pytest.mark.parametrize(
    "mib, sends_all, wanted", [(100, False, 25), (1, False, 25), (100, True, 12.5), (4, True, 1), (1000, True, 25)]
)
def test_what_is_sent_whole_goes_in_eight_buckets(mib, sends_all, wanted):
    gradients = {"a": tf.zeros([1]), "table": slices(5, 3)}  # rows are sent separately
    found = buckets.usual_bucket_bytes(gradients, {"a": (mib * 2**18,), "table": (2**30, 3)}, sends_all)
    assert found == wanted * 2**20


def test_a_large_variable_has_a_bucket_of_its_own():
    plan = plan_of({"a": ones(1), "large": ones(1000), "c": ones(1)}, bucket_bytes=40, first_bucket_bytes=40)
    assert names(plan) == [["c"], ["large"], ["a"]]


def test_each_dtype_has_its_own_buckets():
    plan = plan_of({"a": ones(2), "b": ones(2, tf.bfloat16), "c": ones(2)})
    assert [(bucket.dtype, [s.name for s in bucket.segments]) for bucket in plan.buckets] == [
        (tf.float32, ["c", "a"]),
        (tf.bfloat16, ["b"]),
    ]


def test_slices_are_kept_out_of_the_buckets():
    plan = plan_of({"a": ones(2), "table": slices(5, 3)})
    assert names(plan) == [["a"]]
    assert [segment.name for segment, _ in plan.slices] == ["table"]
    assert plan.placement()["table"] == [[5, 3], "float32", "rows"]


def test_what_is_packed_comes_out_again():
    generator = np.random.default_rng(0)
    shapes = {"scalar": (), "row": (7,), "matrix": (3, 5), "kernel": (2, 2, 3)}
    gradients = {name: tf.constant(generator.normal(size=shape).astype("f4")) for name, shape in shapes.items()}
    (bucket,) = plan_of(gradients).buckets
    vector = bucket.pack(gradients)
    assert vector.shape == [bucket.size] == [1 + 7 + 15 + 12]
    for name, piece in bucket.unpack(vector).items():
        np.testing.assert_array_equal(piece, gradients[name])


def test_the_spec_tells_which_variable_lies_where():
    (bucket,) = plan_of({"a": ones(2), "b": ones(3)}).buckets
    spec = bucket.spec("name", 4, Grid.lone(), in_flight=6).validate()
    assert (spec.size, spec.segments, spec.number, spec.in_flight) == (5, WHOLE.segments, 4, 6)


def test_a_vector_that_is_no_shard_begins_with_its_first_variable():
    assert WHOLE.places == (Place(0, 0, 0, 3), Place(1, 3, 0, 2))


def test_what_checkpoints_and_ranks_are_told_of_a_vector_is_names_and_sizes():
    """In the same form as before segments had shapes."""
    assert recipes.dense().account(WHOLE)["segments"] == [["b", 3], ["a", 2]]


@pytest.mark.parametrize("size, count", [(5, 1), (5, 2), (5, 4), (12, 3), (12, 12), (12, 16)])
def test_shards_tell_which_piece_of_which_variable_lies_where(size, count):
    """Together the pieces contain each element once."""
    sizes = {"a": 3, "none": 0, "b": size - 3}
    whole = Spec(size, Grid.lone(), segments=tuple(Segment(name, (length,)) for name, length in sizes.items()))
    found = []
    for shard in shards(size, count):
        spec = whole._replace(size=shard.size, offset=shard.offset)
        assert sum(place.size for place in spec.places) == shard.size
        for place in spec.places:
            name = spec.segments[place.segment].name
            found += [(shard.offset + place.begin + each, name, place.start + each) for each in range(place.size)]
    everything = [(name, each) for name, length in sizes.items() for each in range(length)]
    assert found == [(number, *element) for number, element in enumerate(everything)]


@pytest.mark.parametrize("count", range(1, 8))
def test_shards_tell_in_which_column_of_which_variable_an_element_is(count):
    """By the last dimension; vectors and scalars are one column, and empty variables have none."""
    shapes = {"scalar": (), "kernel": (2, 2, 3), "none": (0, 4), "bias": (5,), "row": (1, 4)}
    whole = Spec(1 + 12 + 5 + 4, Grid.lone(), segments=tuple(Segment(*each) for each in shapes.items()))
    found = []
    for shard in shards(whole.size, count):
        begin = 0
        for end, start, columns in whole._replace(size=shard.size, offset=shard.offset).matrices:
            found += [(start + each) % columns for each in range(end - begin)]
            begin = end
        assert begin == shard.size
    assert found == [0, *[0, 1, 2] * 4, *[0] * 5, 0, 1, 2, 3]
    assert whole._replace(segments=()).matrices == ()


def test_equal_names_are_told_apart():
    variables = [tf.Variable(0.0, name="w"), tf.Variable(0.0, name="w"), tf.Variable(0.0, name="v")]
    assert unique_names(variables) == ["w:0", "w:0#2", "v:0"]


@pytest.mark.parametrize(
    ("later", "problem"),
    [
        ({"a": ones(1)}, "b had a gradient and now has none"),
        ({"a": ones(1), "b": ones(1), "c": ones(1)}, "c had no gradient and now has one"),
        ({"a": ones(1), "b": slices(1, 1)}, "the gradient of b was dense and no longer is"),
    ],
)
def test_gradients_that_come_and_go_are_refused(later, problem):
    plan = plan_of({"a": ones(1), "b": ones(1)})
    plan.check({"a": ones(1), "b": ones(1)})
    with pytest.raises(ValueError, match=problem):
        plan.check(later)


def test_means_are_taken_out_without_copies_where_they_are_aligned():
    (bucket,) = plan_of({"odd": ones(5), "late": ones(64), "early": ones(32)}).buckets
    vector = tf.random.normal([bucket.size])
    begins = {name: address(piece) - address(vector) for name, piece in bucket.unpack(vector).items()}
    assert begins["early"] == 0 and begins["late"] == 4 * 32 and begins["odd"] != 4 * 96


def address(tensor):
    return np.asarray(tensor).__array_interface__["data"][0]
