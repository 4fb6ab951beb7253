"""What the training scripts share: arguments, learning rates, the loss, and the log of the time to an accuracy."""

import json
import math
import time

import keras
import numpy as np
import pytest

import hvd_sparse as hvd
from examples.training import arguments, losses, monitor, rates
from examples.training.rates import Leg


def options_of(*words, **defaults):
    return arguments.parse(arguments.parser("A test.", **defaults), words)


# ---- arguments ----


def test_a_recipe_is_one_or_several_by_epoch():
    recipes = hvd.recipes
    assert arguments.recipe(options_of()) == recipes.dense()
    assert arguments.recipe(options_of("--recipe", "topk", "--density", "0.05")) == recipes.topk(0.05)
    assert arguments.recipe(options_of("--recipe", "hitopk@0.001")) == recipes.hitopk(0.001)
    wired = options_of("--recipe", "hitopk@1e-3,13:torus2d", "--wire-dtype", "float16")
    stages = [(0, recipes.hitopk(0.001, "float16")), (13, recipes.torus2d("float16"))]
    assert arguments.recipe(wired) == recipes.schedule(stages)
    named = options_of("--recipe", "sparcml_buckets(k=8, bits=None),2:auto(candidates=('dense', 'topk'))")
    stages = [(0, recipes.sparcml_buckets(8, bits=None)), (2, recipes.auto(0.01, ("dense", "topk")))]
    assert arguments.recipe(named) == recipes.schedule(stages)
    assert arguments.recipe(options_of("--recipe", "hitopk(density=0.1)")) == recipes.hitopk(0.1)


def test_a_recipe_may_be_made_of_another():
    recipes = hvd.recipes
    inner = recipes.updates(recipes.hitopk(0.02), ahead=True)
    assert arguments.recipe(options_of("--recipe", "updates(hitopk(density=0.02), ahead=True)")) == inner
    text = "warmup(updates(recipe=hitopk, ahead=True), stage_steps=7),3:torus2d"
    stages = [(0, recipes.warmup(recipes.updates(recipes.hitopk(0.02), True), 7)), (3, recipes.torus2d())]
    assert arguments.recipe(options_of("--recipe", text, "--density", "0.02")) == recipes.schedule(stages)


def test_a_recipe_that_goes_by_the_length_of_the_training_is_known_before_that_is():
    warmed = hvd.recipes.warmup(hvd.recipes.updates(hvd.recipes.hitopk(0.01)), steps=70)
    assert arguments.recipe(options_of("--recipe", "warmup(updates(hitopk))"), 70) == warmed


@pytest.mark.parametrize(
    "recipe, told",
    [
        ("hitop", "Expected a recipe of hvd.recipes"),
        ("schedule", "Expected a recipe of hvd.recipes"),
        ("Density", "Expected a recipe of hvd.recipes"),
        ("dense@0.1", "Expected no density for the recipe dense"),
        ("3:dense,2:torus2d", "ascending stages that start at epoch 0"),
        ("hitopk@2", "ensity"),
        ("sparcml_buckets(k=8", "Expected a recipe of hvd.recipes"),
        ("sparcml_buckets(8)", "Expected arguments by name"),
        ("sparcml_buckets(k=len)", "Expected arguments by name"),
        ("sparcml_buckets(k=8) or dense()", "Expected arguments by name"),
        ("updates(nothing)", "Expected a recipe of hvd.recipes"),
        ("warmup(hitopk, 5)", "Expected arguments by name"),
        ("sparcml_buckets(n=8)", "Expected arguments of sparcml_buckets (k, bucket, bits"),
        ("sparcml_buckets(bits=3)", "2, 4 or 8 bits, got 3"),
    ],
)
def test_a_recipe_that_is_none_is_refused_before_anything_starts(recipe, told, capsys):
    with pytest.raises(SystemExit):
        options_of("--recipe", recipe)
    assert told in capsys.readouterr().err


def test_a_target_is_a_metric_and_a_value(capsys):
    assert options_of("--target", "top5=0.93").target == ("top5", 0.93)
    with pytest.raises(SystemExit):
        options_of("--target", "top5")
    assert "Expected METRIC=VALUE" in capsys.readouterr().err


@pytest.mark.parametrize("name, kind", [("sgd", "SGD"), ("momentum", "SGD"), ("adam", "Adam")])
def test_an_optimizer_is_distributed_and_does_not_decay_biases(name, kind):
    options = options_of("--optimizer", name, "--weight-decay", "0.5", "--recipe", "topk")
    made = arguments.optimizer(options, 0.1)
    assert type(made).__name__ == kind and made.exchange.aggregator == hvd.recipes.topk(0.01)
    assert getattr(made, "momentum", 0.0) == (0.9 if name == "momentum" else 0.0)
    hvd.init()
    dense = keras.layers.Dense(2)
    dense.build((None, 3))
    dense.bias.assign([1.0, 1.0])
    before = dense.kernel.numpy()
    made.apply([np.zeros((3, 2), "float32"), np.zeros(2, "float32")], dense.trainable_variables)
    np.testing.assert_allclose(dense.kernel, before * 0.95, rtol=1e-6)
    np.testing.assert_array_equal(dense.bias, [1.0, 1.0])


def test_resume_wants_a_checkpoint(tmp_path):
    for given, told in [([], "Expected --checkpoint-dir"), (["--checkpoint-dir", str(tmp_path)], "has no checkpoint")]:
        with pytest.raises(ValueError, match=told):
            arguments.begin(options_of("--epochs", "1", "--resume", *given))
    with pytest.raises(ValueError, match="at least 1 epoch"):
        arguments.begin(options_of())


# ---- learning rates ----


def by_hand(step, peak, legs, warmup, shape):
    """The learning rate of a step, computed step by step."""
    epochs = [(epoch + each / leg.steps, leg) for leg, epoch in each_epoch(legs) for each in range(leg.steps)]
    epochs.append((sum(leg.epochs for leg in legs), legs[-1]))
    epoch, leg = epochs[step]
    if epoch < warmup:
        return peak * leg.scale * min(1.0, epochs[step + 1][0] / warmup)
    return peak * leg.scale * shape((epoch - warmup) / (epochs[-1][0] - warmup))


def each_epoch(legs):
    epoch = 0
    for leg in legs:
        for _ in range(leg.epochs):
            yield leg, epoch
            epoch += 1


SHAPES = {
    "cosine": lambda t: (1 + math.cos(math.pi * t)) / 2,
    "polynomial": lambda t: (1 - t) ** 2,
    "constant": lambda t: 1.0,
}


@pytest.mark.parametrize("decay", SHAPES)
@pytest.mark.parametrize("warmup", [0.0, 2.0, 1.5])
def test_rates_follow_the_epoch_whatever_its_number_of_steps(decay, warmup):
    legs = [Leg(3, 4), Leg(2, 7), Leg(1, 20, 0.5)]
    schedule = rates.WarmUpThenDecay(0.8, legs, decay, warmup)
    for step in range(3 * 4 + 2 * 7 + 20):
        expected = by_hand(step, 0.8, legs, warmup, SHAPES[decay])
        assert float(schedule(step)) == pytest.approx(expected, rel=1e-5, abs=1e-6), step


def test_the_inverse_square_root_is_that_of_vaswani():
    schedule = rates.WarmUpThenDecay(1.0, [Leg(10, 100)], "inverse-sqrt", warmup_epochs=4)
    for step in [1, 2, 10, 137, 399, 400, 401, 555, 999]:
        expected = min(step**-0.5, step * 400**-1.5) / 400**-0.5  # 5.3, Equation 3; it counts steps from 1
        assert float(schedule(step if step >= 400 else step - 1)) == pytest.approx(expected, rel=1e-5)


def test_a_rate_ends_at_its_share_and_begins_at_its_share():
    schedule = rates.WarmUpThenDecay(2.0, [Leg(4, 10)], "polynomial", 2, warmup_from=0.5, final=0.1)
    assert float(schedule(0)) == pytest.approx(2 * (0.5 + 0.5 / 20))
    assert float(schedule(20)) == pytest.approx(2.0)
    assert float(schedule(40)) == float(schedule(500)) == pytest.approx(0.2)


def test_a_schedule_survives_being_saved():
    schedule = rates.WarmUpThenDecay(0.3, [Leg(2, 5), Leg(1, 9, 0.25)], "cosine", 1.0, 0.1, 3.0, 0.2)
    optimizer = keras.optimizers.SGD(schedule)
    again = keras.optimizers.SGD.from_config(json.loads(json.dumps(optimizer.get_config())))
    steps = range(20)
    assert [float(schedule(step)) for step in steps] == [float(again._learning_rate(step)) for step in steps]


def test_steps_are_counted_by_epoch():
    schedule = rates.WarmUpThenDecay(1.0, [Leg(2, 5), Leg(3, 7)])
    assert [schedule.steps_before(epoch) for epoch in range(7)] == [0, 5, 10, 17, 24, 31, 38]


@pytest.mark.parametrize(
    "arguments_, told",
    [
        ({"legs": []}, "legs of at least 1 epoch"),
        ({"legs": [Leg(1, 0)]}, "at least 1 step"),
        ({"decay": "linear"}, "Expected a decay of cosine"),
        ({"warmup_epochs": 2}, "shorter than the 2 epochs"),
        ({"decay": "inverse-sqrt"}, "Expected a warm-up"),
    ],
)
def test_a_schedule_that_cannot_be_is_refused(arguments_, told):
    with pytest.raises(ValueError, match=told):
        rates.WarmUpThenDecay(**{"peak": 1.0, "legs": [Leg(2, 2)], **arguments_})


# ---- the loss ----


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("shape", [(6,), (2, 3)])
def test_smoothed_labels_are_those_of_keras(smoothing, shape):
    random = np.random.default_rng(0)
    logits = random.standard_normal((*shape, 5)).astype("float32") * 5
    labels = random.integers(0, 5, shape)
    expected = keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=smoothing)
    one_hot = np.eye(5, dtype="float32")[labels]
    made = losses.SmoothedCrossentropy(smoothing)
    assert float(made(labels, logits)) == pytest.approx(float(expected(one_hot, logits)), rel=1e-5)
    assert float(made(labels[..., np.newaxis], logits)) == float(made(labels, logits))
    again = losses.SmoothedCrossentropy.from_config(made.get_config())
    assert float(again(labels, logits)) == float(made(labels, logits))


def test_masked_places_do_not_count():
    logits = np.random.default_rng(0).standard_normal((2, 3, 5)).astype("float32")
    labels, mask = np.array([[1, 2, 0], [3, 0, 0]]), np.array([[1, 1, 0], [1, 0, 0]])
    made = losses.SmoothedCrossentropy(0.1, reduction="sum")
    parts = made(labels[0, :2], logits[0, :2]) + made(labels[1, :1], logits[1, :1])
    assert float(made(labels, logits, sample_weight=mask)) == pytest.approx(float(parts), rel=1e-6)


def test_half_precision_logits_are_summed_in_float32():
    logits = np.zeros((1, 60_000), "float16")
    assert float(losses.SmoothedCrossentropy()(np.array([3]), logits)) == pytest.approx(math.log(60_000), rel=1e-6)


# ---- the log ----


class Small:
    """A model, its data and its options."""

    def __init__(self, tmp_path, *words):
        hvd.init()
        keras.utils.set_random_seed(0)
        random = np.random.default_rng(0)
        self.x, self.y = random.standard_normal((24, 3)).astype("float32"), random.integers(0, 2, 24)
        self.options = options_of("--checkpoint-dir", str(tmp_path), "--epochs", "4", *words)
        self.model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(2)])
        self.schedule = rates.make(self.options, [Leg(4, 6)])
        self.model.compile(arguments.optimizer(self.options, self.schedule), losses.SmoothedCrossentropy())
        arguments.agree(self.model)
        self.scores = iter([0.25, 0.5, 0.75, 1.0])

    def fit(self, epochs):
        monitored = monitor.Monitor(self.evaluate, monitor.log_path(self.options), self.options.target)
        callbacks = monitor.callbacks(self.options, monitored, [rates.StepFollowsEpoch(self.schedule)])
        self.model.fit(self.x, self.y, batch_size=4, epochs=epochs, shuffle=False, verbose=0, callbacks=callbacks)
        return monitored

    def evaluate(self, model):
        time.sleep(0.05)
        score = next(self.scores)
        return {"top1": score / 2, "top5": score}


def test_the_log_tells_when_the_target_was_reached(tmp_path, capsys):
    small = Small(tmp_path, "--target", "top5=0.75", "--tensorboard", str(tmp_path / "board"))
    monitored = small.fit(4)
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert lines == monitored.lines and [line["epoch"] for line in lines] == [0, 1, 2, 3]
    assert [line["top5"] for line in lines] == [0.25, 0.5, 0.75, 1.0]
    assert monitored.reached == lines[2]["seconds"]
    assert "top5 of 0.75 reached after" in capsys.readouterr().out
    seconds = [line["seconds"] for line in lines]
    assert seconds == sorted(seconds) and seconds[0] > 0
    for number, line in enumerate(lines, 1):
        assert line["evaluation_seconds"] >= 0.05 * number
        assert line["learning_rate"] == pytest.approx(float(small.schedule(6 * number)))
        assert line["train_loss"] > 0
    rows = (tmp_path / "dawnbench.tsv").read_text().splitlines()
    assert rows[0] == "epoch\thours\ttop1Accuracy\ttop5Accuracy" and len(rows) == 5
    assert rows[3].split("\t")[0] == "3" and rows[3].endswith("37.500\t75.000")
    assert float(rows[3].split("\t")[1]) == pytest.approx(seconds[2] / 3600, abs=1e-8)
    assert any((tmp_path / "board").rglob("events.*"))


def test_a_run_that_goes_on_keeps_its_log_and_its_clock(tmp_path):
    whole = Small(tmp_path / "whole")
    expected = whole.fit(4)
    before = Small(tmp_path / "parts").fit(2)
    later = Small(tmp_path / "parts")
    later.scores = iter([0.75, 1.0])
    monitored = later.fit(4)
    assert monitored.lines[:2] == before.lines
    assert monitored.lines[2]["seconds"] > before.lines[1]["seconds"]
    assert monitored.lines[2]["evaluation_seconds"] >= before.lines[1]["evaluation_seconds"] + 0.05
    timed = {"seconds", "evaluation_seconds"}
    for one, other in zip(expected.lines, monitored.lines, strict=True):
        assert one.keys() == other.keys()
        assert all(one[name] == other[name] for name in one.keys() - timed)
    for one, other in zip(whole.model.get_weights(), later.model.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_target_that_is_no_metric_is_refused(tmp_path):
    with pytest.raises(ValueError, match="Expected a target of top1, top5, got 'top-5'"):
        Small(tmp_path, "--target", "top-5=0.9").fit(1)


def test_the_count_of_steps_follows_the_epoch(tmp_path):
    small = Small(tmp_path)
    small.model.optimizer.build(small.model.trainable_variables)
    small.model.optimizer.iterations.assign(17)  # as if a different number of ranks had taken them
    small.fit(1)
    assert int(small.model.optimizer.iterations) == 6
