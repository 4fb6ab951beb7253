"""The benchmark of DCT: arms on small matrices give the right results, and reports contain what was measured."""

import argparse
import dataclasses
import math

import numpy as np
import pytest

from benchmarks.dct import life as dct_life
from benchmarks.dct import quality as dct_quality
from benchmarks.dct import threshold as dct_threshold
from benchmarks.dct import thresholds as dct_thresholds
from benchmarks.dct import training as dct_training
from benchmarks.dct import translation as dct_translation
from benchmarks.dct.quality import ARMS
from benchmarks.reporting import report, writing
from benchmarks.studies.store import append
from tests.examples import messages


@pytest.mark.thorough
def test_all_arms_are_checked_and_the_report_has_the_targets(monkeypatch):
    monkeypatch.setattr(dct_threshold, "SHAPES", ((8, 4096), (4, 4096)))
    told = []
    section = dct_threshold.measure(argparse.Namespace(quick=False), told.append)
    assert len(told) == len(section.figures["cells"]) == 2 * len(dct_threshold.SPARSITIES)
    assert len(section.verdicts) == 3
    text = report.of_questions("T", [report.Answer(section, "By hand.")])
    assert "threshold of [8, 4096] at 0.95" in text and "| backward |" in text


def test_differences_of_test_loss_are_paired_by_seed(tmp_path):
    """A store that was cut short is continued, and each arm is compared with dense training on as many trainers."""
    rows, store = "of this index", tmp_path / "runs.jsonl"
    losses = {
        arm.name: {seed: 0.3 + 0.001 * number + 0.01 * seed for seed in range(3)} for number, arm in enumerate(ARMS)
    }
    for arm in ARMS:
        for seed, loss in losses[arm.name].items():
            append(store, {"fingerprint": arm.fingerprint(rows, seed), "loss": loss})
    assert len(dct_quality.load(store)) == 3 * len(ARMS)
    section = dct_quality.told(losses, ARMS, rows)
    mean, half = section.figures["differences"]["90%, one split"]
    assert (round(mean, 6), round(half, 6)) == (round(0.003 / 0.31, 6), 0.0)
    mean, _ = section.figures["differences"]["dct(0.99)"]
    assert mean == pytest.approx(0.001 / np.mean([*losses[dct_quality.DENSE_OF_TWO].values()]))
    losses["dct(0.99)"].pop(1)  # unfinished runs are not reported
    assert "| dct(0.99) | 0.320" in "".join(section.lines) and section.lines[-1].endswith("| 3 |")
    assert "| 2 |" in "".join(dct_quality.told(losses, ARMS, rows).lines)
    assert [verdict.met for verdict in section.verdicts] == [False] * len(dct_quality.HYBRIDS)
    assert len({arm.fingerprint(rows, 0) for arm in ARMS} | {ARMS[0].fingerprint("others", 0)}) == len(ARMS) + 1


def test_a_difference_that_equal_arms_may_have_is_within_the_target():
    """Here A/A has a mean of 0 with an interval of ± 1.24%, or none with one seed."""
    losses = {arm.name: {} for arm in ARMS}
    for seed in range(3):
        losses[dct_quality.DENSE_SMALL][seed] = 0.3
        losses[dct_quality.AGAIN_SMALL][seed] = 0.3 + 0.0015 * (seed - 1)
        losses[dct_quality.ONE_SMALL][seed] = 0.303
    (verdict,) = dct_quality.told(losses, ARMS, "").verdicts
    assert verdict.wanted == "<= +0.3%, or +1.24% that equal arms may differ by" and verdict.met
    few = {name: {seed: loss for seed, loss in found.items() if seed == 0} for name, found in losses.items()}
    (verdict,) = dct_quality.told(few, ARMS, "").verdicts
    assert verdict.wanted == "<= +0.3%" and not verdict.met


def test_a_quick_run_leaves_the_store_of_the_study_as_it_is(tmp_path, monkeypatch):
    store, made = tmp_path / "runs.jsonl", []

    def make(arm, seed, rows, store):
        made.append(store)
        append(store, {"fingerprint": arm.fingerprint(rows, seed), "loss": 0.3})
        return arm.name

    monkeypatch.setattr(dct_quality, "make", make)
    monkeypatch.setattr(dct_quality.index, "read", lambda: argparse.Namespace(digest="of this index"))
    options = argparse.Namespace(quick=True, finished=False, seeds=None)
    section = dct_quality.measure(options, lambda line: None, store)
    assert section.figures["losses"] == {arm.name: {0: 0.3} for arm in dct_quality.QUICK}
    assert section.lines[-1].endswith("| +0.00% | 1 |")  # one seed has no interval
    assert len(made) == 2 and not store.exists() and not made[0].exists()
    options.quick, options.seeds = False, 1
    dct_quality.measure(options, lambda line: None, store)
    assert set(made[2:]) == {store} and len(dct_quality.load(store)) == len(made) - 2 == len(ARMS)
    before = store.read_bytes()
    options.quick = True
    dct_quality.measure(options, lambda line: None, store)
    assert store.read_bytes() == before


def trained(seconds, counted, split=40.0, embeddings=20.0, gradients=30.0):
    """Results of `dct_rank` for one arm, on one node that sends much and three that send little."""
    nothing = {"counted": 1.0, "split": 0.0, "embeddings": 0.0, "gradients": 0.0}
    sent = {"counted": counted, "split": split, "embeddings": embeddings, "gradients": gradients}
    return [{"steps": 2, "seconds": seconds, "processor": seconds / 2, **each} for each in (sent, *[nothing] * 3)]


def test_the_table_of_a_training_has_all_arms_and_bytes_by_kind():
    results = [{"arm": arm.name, "ranks": trained(1.0, 100.0)} for _ in range(7) for arm in dct_training.ARMS]
    cell = dct_training.summarised(dct_training.ARMS, results, 1e8, 128)
    assert {each["samples_per_second"][0] for each in cell.values()} == {2 * 128 / 0.5}
    for each in cell.values():
        assert [each[kind] for kind in ("bytes", *dct_training.KINDS)] == [50.0, 20.0, 10.0, 15.0, 5.0]
        assert (each["processor"], each["processor_seconds"]) == (0.5, 0.25)
    verdicts = dct_training._verdicts("100mbit", 128, cell)
    assert all(each.measured.startswith("1.00 (1.00 to 1.00)") and not each.met for each in verdicts)
    assert all(each.met for each in dct_training._verdicts("1gbit", 128, cell))
    assert len(dct_training._table(cell)) == 2 + len(dct_training.ARMS)


@pytest.mark.parametrize("seconds, is_met", [(0.54, True), (0.57, False)])
def test_a_large_batch_is_to_gain_what_its_bytes_allow(seconds, is_met):
    """A step takes a second, half of it on the link: without those bytes 0.5 s remain, or 0.56 s with a tolerance
    of a tenth."""
    rate, names = 100e6, (dct_training.DENSE, dct_training.OURS)
    ranks = {dct_training.DENSE: trained(2.0, 2 * 0.5 * rate / 8), dct_training.OURS: trained(2 * seconds, 0.0, 0, 0)}
    arms = [arm for arm in dct_training.ARMS if arm.name in names]
    results = [{"arm": name, "ranks": ranks[name]} for _ in range(7) for name in names]
    cell = dct_training.summarised(arms, results, rate, 1024)
    assert dct_training.allowed(cell, *names, rate) == pytest.approx(2.0)
    assert dct_training._verdict("100mbit", 1024, cell, *names).met == is_met


def test_thresholds_are_told_and_drawn(tmp_path):
    watch = dct_thresholds.Watch(None)
    watch.steps = [*range(0, 400, dct_thresholds.EVERY)]
    for number, told in enumerate([*watch.gradients.values(), *watch.activations.values()], start=1):
        told.extend(number / (1 + step) for step in watch.steps)
    held = {0.9: [0.5] * len(watch.steps)}
    section = dct_thresholds.told("thresholds", watch, held)
    assert "| 90% | 0.016 | 0.500 |" in section.lines  # of step 380, the last of twenty, and of step 360
    dct_thresholds.draw(watch, held, tmp_path / "dct.png")
    assert 5_000 < (tmp_path / "dct.png").stat().st_size <= writing.LARGEST_PICTURE


def test_what_a_selection_sends_and_leaves_is_checked():
    residual, gradient = np.random.default_rng(0).standard_normal((2, 1000), np.float32)
    arm = dct_life.Selecting(dct_life.HeldThreshold(0.1, life=2), 1000)
    arm.begin(residual, gradient[np.newaxis])
    assert len(arm.step(gradient[np.newaxis])[0]) == arm.sent and arm.clamped == 0
    total = residual + gradient
    total[np.argsort(-np.abs(total))[:100]] = 0.0
    total += gradient
    reached = np.abs(total) >= np.sort(np.abs(residual + gradient))[-100]
    assert arm.sent == np.count_nonzero(reached)
    np.testing.assert_array_equal(arm.residual, np.where(reached, 0.0, total))


@pytest.mark.thorough
def test_selections_are_timed_by_the_life_of_their_thresholds(tmp_path):
    """Steps that take a new threshold are distinguished from those in between."""
    vectors = list(np.random.default_rng(0).standard_normal((4, 1000), np.float32))
    cells = {0.95: dct_life.timed(0.95, vectors, 12, 20)}
    section = dct_life.told(cells, 1000, 12)
    cell = section.figures["0.95"]
    assert set(cell) == {dct_life.ADD, dct_life.EXACT, *map(dct_life.name_of, dct_life.LIVES)}
    assert cell["life 1"]["sent"] == cell[dct_life.EXACT]["sent"] == 1.0 != cell["life 10"]["sent"]
    assert {"anew_ms", "between_ms"} <= set(cell["life 10"]) and "anew_ms" not in cell["life 100"]
    assert "between_ms" not in cell["life 1"] and len(section.verdicts) == 1
    dct_life.draw({0.9: cell, 0.95: cell}, tmp_path / "life.png")
    assert 5_000 < (tmp_path / "life.png").stat().st_size <= writing.LARGEST_PICTURE


# ---- translation ----


@pytest.fixture(scope="module")
def sentences(tmp_path_factory):
    return str(messages.write_sentences(tmp_path_factory.mktemp("catalogues")))


@pytest.fixture
def models(monkeypatch, sentences):
    """The study's models, trained on few sentences."""
    for name, settings in dct_translation.MODELS.items():
        few = (*settings.options, "--catalogues", sentences, "--vocabulary", "400")
        monkeypatch.setitem(dct_translation.MODELS, name, dataclasses.replace(settings, options=few))


def made_up(wanted, store):
    """Finished runs: each arm ends 0.2 points below the one it is compared with; the rate of 0.5 is the best."""
    for run in wanted:
        below = 0.0 if dct_translation.ARMS[run.arm].against == run.arm else 0.2
        final = 20.0 + run.seed - below
        losses = {"loss": 2.0 + below, "error": abs(run.rate - 0.5)}
        append(store, {"final": final, **losses, "seconds": 60.0, "fingerprint": run.fingerprint()})


def test_translations_are_a_queue_and_each_model_has_its_rate(tmp_path, models):
    store, arms = tmp_path / "runs.jsonl", ["dense", "one90", "deep", "deep_eight"]
    outcomes = dct_translation.trained(arms, range(3), 0, store, made_up)
    assert {(run.arm, run.rate) for run in outcomes} == {*zip(arms, (1.5, 1.5, 0.5, 0.5), strict=True)}
    section = dct_translation.told(outcomes, arms)
    one, eight = section.figures["differences"]["one90"], section.figures["differences"]["deep_eight"]
    assert (round(one["mean"], 6), one["pairs"], one["against"], eight["against"]) == (-0.2, 3, "dense", "deep")
    assert [verdict.met for verdict in section.verdicts] == [True, True]
    assert "| 90%, one split | 20.80 ± 1.00 | dense | -0.20 (-0.20 to -0.20) | 2.200 | +0.200" in "".join(section.lines)

    asked = []
    more = dct_translation.trained([*arms, "one98"], range(3), 0, store, lambda wanted, _: asked.extend(wanted))
    assert [(run.arm, run.seed) for run in asked] == [("one98", seed) for seed in range(3)]
    assert more == outcomes and dct_translation.told(more, [*arms, "one98"]) == section


def test_whatever_changes_a_translation_changes_its_fingerprint(models):
    runs = [dct_translation.Run(arm, 0, 1.5) for arm in dct_translation.ARMS]
    runs += [dct_translation.Run("dense", 1, 1.5), dct_translation.Run("dense", 0, 1.0)]
    runs += [dct_translation.Run("dense", 0, 1.5, epochs=2)]
    assert len({run.fingerprint() for run in runs}) == len(runs)


def test_options_that_cannot_be_are_refused():
    parsed = argparse.Namespace(arms="dense,one91", seeds=None, epochs=0)
    assert dct_translation.problem(parsed).endswith("got dense,one91")
    assert "20 seeds, got 0" in dct_translation.problem(argparse.Namespace(arms="dense", seeds=0, epochs=0))
    assert "3 epochs, got 2" in dct_translation.problem(argparse.Namespace(arms="dense", seeds=8, epochs=2))
    assert dct_translation.problem(argparse.Namespace(arms="dense", seeds=8, epochs=0)) is None


@pytest.mark.thorough
def test_a_run_of_the_queue_trains_a_translation(models):
    run = dct_translation.Run("before90", 0, 1.5, epochs=2)
    job = {**dataclasses.asdict(run), "settings": dataclasses.asdict(run.settings())}
    outcome = dct_translation.train(job)
    assert outcome["loss"] < math.log(400) and outcome["fitted"] < math.log(400) + 0.5
    assert all(math.isfinite(outcome[name]) for name in ("final", "top1", "error"))
