"""The appendices of DCT: what each scheme sends across a split, and closed forms of means compared with samples."""

import argparse
import math

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.dct import appendix as dct_appendix
from benchmarks.dct import schemes as dct_schemes
from benchmarks.dct import theorem as dct_theorem
from benchmarks.dct.schemes import BATCH, IN_FEWER_BITS, OURS, SCHEMES, SPARSITIES, WIDTH
from benchmarks.reporting import report
from hvd_sparse.pipeline import messages
from hvd_sparse.pipeline.threshold import Threshold


def drawn(seed, *shape):
    return tf.constant(np.random.default_rng(seed).standard_normal(shape, np.float32))


# ---- schemes ----


@pytest.mark.parametrize("sparsity", SPARSITIES)
def test_schemes_have_the_bytes_of_ours(sparsity):
    """In total over both directions, or backward; or the next smaller number, if one more value would exceed it."""
    told = {name: make(sparsity, 1).bytes_of_row for name, make in SCHEMES.items()}
    assert told[OURS] == dct_schemes.bytes_of(sparsity)
    for name in dct_schemes.AS_MANY:
        assert sum(told[OURS]) - 8 < sum(told[name]) <= sum(told[OURS])
    for name in dct_schemes.BACKWARD:
        assert told[name][0] == 4 * WIDTH
        assert told[OURS][1] - 4 * dct_schemes.HASHES < told[name][1] <= told[OURS][1]


@pytest.mark.parametrize("name", [name for name in SCHEMES if name.endswith("error feedback")])
@given(sparsity=st.sampled_from(SPARSITIES), seed=st.integers(0, 2**32))
def test_what_feeds_back_loses_nothing(sparsity, seed, name):
    made = SCHEMES[name](sparsity, 2)
    left = np.zeros([2, BATCH, WIDTH], np.float32)
    for step in range(2):
        gradient = drawn(seed + step, 2, BATCH, WIDTH)
        sent = made.backward(gradient, None).numpy()
        total = gradient.numpy() + left
        left = made.residual.numpy()
        np.testing.assert_array_equal(sent + left, total)
        assert not (sent * left).any()
        kept = np.count_nonzero(sent, axis=-1)
        assert (kept == kept[0, 0]).all() and kept[0, 0] * 4 < dct_schemes.bytes_of(sparsity)[1]
        assert np.abs(sent).max(-1).min() >= np.abs(left).max(-1).min()


@given(sparsity=st.sampled_from(SPARSITIES), place=st.integers(0, WIDTH - 1), value=st.floats(0.5, 2, width=32))
def test_a_sketch_finds_an_element_that_is_alone(sparsity, place, value):
    """Elements that share most of its counters are estimated to be as large; if too many do, it may lose the tie."""
    gradient = np.zeros([1, 1, WIDTH], np.float32)
    gradient[..., place] = value
    made = SCHEMES["count sketch of the gradient"](sparsity, 1)
    found = made.backward(tf.constant(gradient), None).numpy()[0, 0]
    most = made.bytes_of_row[1] // 4 // dct_schemes.HASHES
    assert np.abs(found).max() == np.float32(value) and np.count_nonzero(found) <= most
    assert found[place] == value or np.count_nonzero(np.abs(found) == np.float32(value)) == most


@given(sparsity=st.sampled_from(SPARSITIES), seed=st.integers(0, 2**32))
def test_the_gradient_of_a_gaussian_sketch_is_that_of_what_was_computed(sparsity, seed):
    made, x, gradient = (
        SCHEMES["Gaussian sketch"](sparsity, 1),
        drawn(seed, WIDTH),
        drawn(seed + 1, WIDTH),
    )
    arrived, kept = made.forward(x[None])
    one, other = arrived[0].numpy() @ gradient.numpy(), x.numpy() @ made.backward(gradient[None], kept)[0].numpy()
    assert one == pytest.approx(other, abs=1e-2)
    norms = np.mean([made.forward(drawn(each, 1, WIDTH))[0].numpy() @ drawn(each, WIDTH).numpy() for each in range(50)])
    assert norms / WIDTH == pytest.approx(1.0, abs=0.25)  # it preserves the norm on average


@given(seed=st.integers(0, 2**32), dtype=st.sampled_from(["int8", "int4"]))
def test_whole_numbers_are_those_that_travel_between_stages(seed, dtype):
    made, x = dct_schemes.WholeNumbers(dtype), drawn(seed, 3, WIDTH)
    payload = messages.encode_values(x, dtype)
    assert made.bytes_of_row == (payload.nbytes // 3,) * 2
    travelled = messages.decode_values(memoryview(payload), (3, WIDTH), dtype, "float32")
    for arrived in (made.forward(x)[0], made.backward(x, None)):
        np.testing.assert_allclose(arrived, travelled, rtol=1e-6, atol=1e-7)


@given(seed=st.integers(0, 2**32))
def test_a_sample_goes_whole_once_and_then_by_its_changes(seed):
    """Both sides have the same activations of each sample; what is not sent yet is in the next change."""
    made, usual = dct_schemes.Changes("int4", 2, 10), dct_schemes.WholeNumbers("int4")
    samples, x = tf.constant([[3, 1, 4], [1, 5, 9]]), drawn(seed, 2, 3, WIDTH)
    np.testing.assert_array_equal(made.forward(x, samples)[0], x)
    known = x
    for step in range(3):
        x = x + 0.01 * drawn(seed + 1 + step, 2, 3, WIDTH)
        arrived = made.forward(x, samples)[0]
        np.testing.assert_array_equal(arrived, known + usual.forward(x - known)[0])
        np.testing.assert_array_equal(tf.gather(made.known, samples, batch_dims=1), arrived)
        known = arrived
    untouched = np.setdiff1d(np.arange(10), samples[0])
    assert not made.known.numpy()[0, untouched].any()
    np.testing.assert_array_equal(made.forward(x)[0], x)  # test samples have not been sent before


@pytest.mark.parametrize("sparsity", [0.0, 0.9])
def test_gradients_of_the_halves_are_those_of_the_whole(sparsity):
    """As computed by a tape through a `Threshold` layer."""
    scheme = SCHEMES[OURS](sparsity, 2) if sparsity else dct_schemes.Dense()
    models, images = dct_appendix.Models(scheme, 2), drawn(3, 2, 5, 64)
    labels, layer = tf.constant([[0, 1, 2, 3, 4], [9, 8, 7, 6, 5]]), Threshold(sparsity)
    variables = [variable.value for each in models.layers for variable in each]
    with tf.GradientTape() as tape:
        x = images
        for number, (kernel, bias) in enumerate(models.layers, start=1):
            x = x @ kernel + bias
            x = tf.nn.relu(x) if number < len(models.layers) else x
            x = layer(x) if number == dct_appendix.SPLIT else x
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, x)
        loss = tf.reduce_sum(tf.reduce_mean(losses, 1))
    expected = tape.gradient(loss, variables)
    for own, wanted in zip(models.gradients(images, labels), expected, strict=True):
        np.testing.assert_allclose(own, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.thorough
def test_a_quick_run_of_the_appendix_trains_all_schemes():
    options = argparse.Namespace(quick=True, seeds=None)
    section = dct_appendix.measure(options, lambda line: None)
    assert [each["name"] for each in section.figures["cells"]] == ["dense", "dense, A/A", *SCHEMES, *IN_FEWER_BITS]
    assert all(loss < math.log(10) for each in section.figures["cells"] for loss in each["fitted"])
    assert len(section.verdicts) == len(SCHEMES) - 1
    assert "| DCT-MP | 90% | 136 | 104 |" in report.of_questions("T", [report.Answer(section, "By hand.")])


# ---- the theorem ----


@pytest.mark.parametrize("sparsity", [0.5, 0.9])
def test_sampled_means_are_the_closed_forms(sparsity):
    """Within three standard errors, and further from the values for another share and for the mean threshold."""
    case = dct_theorem.case(64, sparsity, 4_000, 1)
    assert len(case["errors"]) == 1 + 2 * len(dct_theorem.TARGETS)
    assert max(case["errors"]) <= dct_theorem.MOST
    found = dct_theorem.sample(64, sparsity, dct_theorem.TARGETS, 4_000, 1)
    kept = dct_theorem.kept_of(64, sparsity)
    weight = 1.0 / dct_theorem.by_sample(64, kept).mean
    other = dct_theorem.by_sample(64, kept + 2).gradient(weight, 0.5)
    assert found["by_sample"][0].errors_from(other) > dct_theorem.MOST
    assert found["by_sample"][1].errors_from(case["gradients"]["by_mean"][1]) > dct_theorem.MOST


@given(width=st.integers(1, 10_000))
def test_where_all_pass_it_is_the_sum_of_all(width):
    everything = (pytest.approx(width), pytest.approx(width))
    assert dct_theorem.by_sample(width, width) == everything == dct_theorem.by_mean(width, 0.0)
    assert dct_theorem.mean_threshold(width, width) == pytest.approx(1 / width)


def test_the_report_of_the_theorem_has_both_sides():
    cases = [dct_theorem.case(64, 0.9, 200, 1)]
    section = dct_theorem.told(cases, 200)
    (row, _) = [line for line in section.lines if line.startswith("| 64 | 90% |")]
    assert row.startswith("| 64 | 90% | 1.0373 | 0.5 |") and "| 0.52624 |" in row and row.endswith("| 0.892 |")
    cases[0]["errors"][0] = 3.1
    (verdict,) = dct_theorem.told(cases, 200).verdicts
    assert not verdict.met and verdict.measured == "3.10"
