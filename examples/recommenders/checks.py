"""What the recommender's figures are worth: whether answers leak, and which difference of test loss is beyond luck.

    python -m examples.recommenders.checks --seeds 8

On the package index, test losses of the best guess without features, of each feature by itself, of logistic regression
on the same features (scikit-learn), of the DLRM, and of a DLRM whose training labels were permuted: it must not be
better than the guess. Then the DLRM's spread over seeds, and the spread of a difference between two halves of the seeds
over test rows drawn anew, by source (bootstrap). Other options are those of examples.recommender.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from scipy import sparse
from sklearn.linear_model import LogisticRegression

from examples import recommender
from examples.recommenders.packages import CATEGORIES, NUMBERS
from examples.recommenders.scores import Scores
from examples.recommenders.tables import InMemory, Table, Task

_BINS = 50  # of a number
_DRAWS = 1_000


class Resolution(NamedTuple):
    """Which difference between two means of `seeds` runs each is more than luck; all as shares of the loss.

    Attributes:
        loss: mean test loss.
        seeds: runs of each of the two that are compared.
        spread: standard deviation of the loss over seeds.
        rows: standard deviation, over rows drawn anew, of the difference of two halves of the seeds.
    """

    loss: float
    seeds: int
    spread: float
    rows: float

    @property
    def resolved(self) -> float:
        """Two standard deviations of both together."""
        return 2 * math.hypot(self.spread * math.sqrt(2 / self.seeds), self.rows)


def cross_entropy(labels: np.ndarray, logits: np.ndarray) -> np.ndarray:
    """Of each row."""
    return np.logaddexp(0.0, logits) - labels * logits


def of_single_features(train: Table, test: Table) -> dict[str, float]:
    """Test loss of the rates of yes that each value of one feature had in training; numbers in bins."""
    features = dict(zip(CATEGORIES, zip(train.categories.T, test.categories.T, strict=True), strict=True))
    for name, own, held_out in zip(NUMBERS, train.numbers.T, test.numbers.T, strict=True):
        edges = np.quantile(own, np.linspace(0, 1, _BINS + 1)[1:-1])
        features[name] = np.searchsorted(edges, own), np.searchsorted(edges, held_out)
    return {name: _of_rates(*pair, train.labels, test.labels) for name, pair in features.items()}


def _of_rates(own: np.ndarray, held_out: np.ndarray, labels: np.ndarray, held_out_labels: np.ndarray) -> float:
    size = int(max(own.max(), held_out.max())) + 1
    yes = np.bincount(own, labels, size) + labels.mean()  # one more row, of the mean: no rate is 0 or 1
    rates = yes / (np.bincount(own, minlength=size) + 1)
    logits = np.log(rates / (1 - rates))[held_out]
    return float(cross_entropy(held_out_labels, logits).mean())


def of_logistic_regression(train: Table, test: Table, sizes: Sequence[int]) -> float:
    """Test loss of scikit-learn's, with the strength of regularisation that is best on the test."""
    own, held_out = (_one_hot(table, sizes) for table in (train, test))
    fitted = (LogisticRegression(C=strength, max_iter=300).fit(own, train.labels) for strength in (0.01, 0.1, 1.0))
    return min(float(cross_entropy(test.labels, each.decision_function(held_out)).mean()) for each in fitted)


def _one_hot(table: Table, sizes: Sequence[int]) -> sparse.csr_matrix:
    rows, fields = table.categories.shape
    columns = table.categories + np.cumsum([0, *sizes[:-1]])
    ones = sparse.csr_matrix(
        (np.ones(columns.size), columns.ravel(), np.arange(0, columns.size + 1, fields)), (rows, sum(sizes))
    )
    return sparse.hstack([sparse.csr_matrix(table.numbers), ones]).tocsr()


def losses(options: argparse.Namespace, task: Task) -> np.ndarray:
    """Test loss of each row after one training."""
    model, _ = recommender.trained(options, task)
    scores = Scores(model, task.test)
    batches = task.test.share(4_096, 0, 1)
    return np.concatenate([cross_entropy(each.labels, scores.logits(*each[:2])) for each in batches])


def permuted(task: Task) -> Task:
    """The task with the training's labels in another order."""
    table = task.train.table
    labels = np.random.default_rng(0).permutation(table.labels)
    return task._replace(train=InMemory(table._replace(labels=labels)))


def resolution(of_seeds: np.ndarray, groups: np.ndarray, draws: int = _DRAWS) -> Resolution:
    """What runs that differ in their seeds alone say.

    Args:
        of_seeds: losses float64 [seeds, rows].
        groups: int32 [rows]; drawn anew are these.
        draws: of the rows.
    """
    each = of_seeds.mean(axis=1)
    half = len(of_seeds) // 2
    difference = of_seeds[:half].mean(axis=0) - of_seeds[half : 2 * half].mean(axis=0)
    own = np.unique(groups, return_inverse=True)[1]
    sums, counts = np.bincount(own, difference), np.bincount(own)
    chosen = np.random.default_rng(0).integers(0, len(sums), (draws, len(sums)))
    drawn = np.array([sums[each].sum() / counts[each].sum() for each in chosen])
    return Resolution(each.mean(), half, each.std(ddof=1) / each.mean(), drawn.std() / each.mean())


def report(options: argparse.Namespace, seeds: int) -> Iterator[str]:
    """The lines."""
    task = recommender.prepare(options)
    train, test = task.train.table, task.test.table
    parts = [set(each.table.groups.tolist()) for each in task[:3]]
    straddling = sum(len(parts[one] & parts[other]) for one, other in ((0, 1), (0, 2), (1, 2)))
    rate = train.labels.mean()
    yield f"sources in more than one part: {straddling}; share of yes: {rate:.4f}, {test.labels.mean():.4f}"
    guess = cross_entropy(test.labels, np.full(len(test.labels), math.log(rate / (1 - rate)))).mean()
    yield f"no feature: {guess:.4f}"
    single = sorted(of_single_features(train, test).items(), key=lambda item: item[1])
    yield f"single features, the best: {', '.join(f'{name} {loss:.4f}' for name, loss in single[:3])}"
    yield f"logistic regression: {of_logistic_regression(train, test, task.sizes):.4f}"
    yield f"DLRM, labels permuted: {losses(options, permuted(task)).mean():.4f}"
    numbered = [argparse.Namespace(**{**vars(options), "seed": options.seed + number}) for number in range(seeds)]
    of_seeds = np.stack([losses(each, task) for each in numbered])
    yield f"DLRM: {', '.join(f'{loss:.5f}' for loss in of_seeds.mean(axis=1))}"
    found = resolution(of_seeds, test.groups)
    yield (
        f"mean {found.loss:.5f}; over seeds {found.spread:.2%}, of a difference over test rows {found.rows:.2%}; "
        f"{found.seeds} runs against {found.seeds} resolve {found.resolved:.2%}"
    )


def main() -> None:
    """The command."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--seeds", type=int, default=8, help="runs, at least 4")
    own, words = made.parse_known_args()
    options = recommender.parse(words)
    if own.seeds < 4 or options.criteo:
        made.error("expected at least 4 seeds, and the package index for data")
    for line in report(options, own.seeds):
        print(line, flush=True)


if __name__ == "__main__":
    main()
