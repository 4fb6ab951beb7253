"""The matrix W, its two scalars, and the ball to which training converges."""

from __future__ import annotations

import numpy as np
import pytest

from hvd_sparse.averaging import theory
from tests.averaging import simulation


def draws(count: int, ranks: int, probability: float, seed: int) -> np.ndarray:
    """Matrices W [count, n, n] of blocks with uniformly drawn owners."""
    generator = np.random.default_rng(seed)
    lost = (generator.random((count, 2, ranks, ranks)) < probability) & ~np.eye(ranks, dtype=bool)
    return theory.mixing_matrices(lost, generator.integers(ranks, size=count))


@pytest.mark.parametrize("ranks", [4, 16])
@pytest.mark.parametrize("probability", [0.01, 0.05, 0.1, 0.2])
def test_the_closed_forms_are_what_draws_tend_to(ranks, probability):
    told = theory.scalars_of(draws(80000 // ranks**2 * 4, ranks, probability, seed=0))
    error = told.std(axis=0, ddof=1) / np.sqrt(len(told))
    assert (error > 0).all() and (np.abs(told.mean(axis=0) - theory.scalars(ranks, probability)) < 3 * error).all()


@pytest.mark.parametrize("probability, a1, a2", [(0.01, 0.0100, 0.00124), (0.1, 0.1005, 0.0114), (0.2, 0.2010, 0.0204)])
def test_closed_forms_by_hand(probability, a1, a2):
    found = theory.scalars(16, probability)
    assert found.a1 == pytest.approx(a1, abs=6e-5) and found.a2 == pytest.approx(a2, abs=6e-5)
    assert theory.scalars(4, 0.1) == pytest.approx((0.1092, 0.0485), abs=6e-5)


def test_without_loss_all_ranks_have_the_mean():
    assert theory.scalars(7, 0.0) == pytest.approx((0.0, 0.0), abs=1e-12)
    (matrix,) = draws(1, 7, 0.0, seed=0)
    np.testing.assert_allclose(matrix, np.full((7, 7), 1 / 7))


@pytest.mark.parametrize("probability", [0.3, 0.9, 1.0])
def test_new_blocks_are_convex_combinations_of_old_ones(probability):
    matrices = draws(500, 5, probability, seed=1)
    assert (matrices >= 0).all()
    np.testing.assert_allclose(matrices.sum(axis=1), 1.0)
    if probability == 1.0:
        np.testing.assert_array_equal(matrices, np.broadcast_to(np.eye(5), matrices.shape))


def test_the_mean_of_the_matrices_is_what_the_scalars_say():
    """E[W W^T] = a1 I + (1 - a1) A, entry by entry, because owners are uniform."""
    ranks, probability = 4, 0.1
    matrices = draws(20000, ranks, probability, seed=2)
    a1, a2 = theory.scalars(ranks, probability)
    mean = np.full((ranks, ranks), 1 / ranks)
    for inner, scalar in ((np.eye(ranks), a1), (mean, a2)):
        products = np.einsum("kab,bc,kdc->kad", matrices, inner, matrices, optimize=True)
        error = products.std(axis=0, ddof=1) / np.sqrt(len(products))
        expected = scalar * np.eye(ranks) + (1 - scalar) * mean
        assert (np.abs(products.mean(axis=0) - expected) < 4 * error).all()


def test_what_the_scalars_say_of_models():
    """Of the sum of squared distances to the mean, a1 - a2 remains; the mean's squared displacement is a2 / n of it."""
    ranks, probability = 4, 0.2
    models = np.random.default_rng(3).normal(size=(7, ranks))
    new = models @ draws(20000, ranks, probability, seed=4)
    mean, means = models.mean(axis=1, keepdims=True), new.mean(axis=2, keepdims=True)
    before = np.sum((models - mean) ** 2)
    left = np.sum((new - means) ** 2, axis=(1, 2)) / before
    moved = ranks * np.sum((means - mean) ** 2, axis=(1, 2)) / before
    a1, a2 = theory.scalars(ranks, probability)
    for found, expected in ((left, a1 - a2), (moved, a2)):
        assert abs(found.mean() - expected) < 3 * found.std(ddof=1) / np.sqrt(len(found))


def test_the_ball_of_convergence_shrinks_with_the_number_of_ranks():
    """Noisy SGD on |x|^2 / 2 with a constant rate stays in a ball around 0 whose size goes with 1 / n (theorem 1)."""
    balls = [_ball(ranks) for ranks in (1, 4, 16)]
    alone = 0.1 / (2 - 0.1)  # the long-run variance of an element on one rank: rate / (2 - rate)
    assert balls[0] == pytest.approx(alone, rel=0.2)
    assert balls[1] < balls[0] / 2 and balls[2] < balls[1] / 2


def _ball(ranks: int, probability: float = 0.1, rate: float = 0.1, size: int = 64, steps: int = 160) -> float:
    """The mean square of an element of the mean model, once the models no longer converge further."""
    generator = np.random.default_rng(0)
    own = np.zeros((ranks, size), np.float32)
    squares = []
    for round in range(steps):
        gradients = own + generator.normal(size=own.shape)
        moved = (own - rate * gradients).astype(np.float32)
        own = simulation.averaged(moved, round, simulation.drawn(probability, 0, round, ranks), rotate=True).vectors
        squares.append(np.mean(own.mean(axis=0) ** 2))
    return float(np.mean(squares[40:]))


@pytest.mark.parametrize("ranks, probability", [(1, 0.1), (4, 1.0), (4, -0.1)])
def test_what_has_no_closed_form_is_refused(ranks, probability):
    with pytest.raises(ValueError, match=f"got {ranks} and {probability}"):
        theory.scalars(ranks, probability)
