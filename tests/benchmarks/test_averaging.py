"""The study of model averaging: its data, its ranks, its queue, its report, and a small run of the command."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json

import numpy as np
import pytest

from benchmarks.averaging import bench_averaging
from benchmarks.averaging import data as averaging_data
from benchmarks.averaging import report as averaging_report
from benchmarks.averaging.convergence import Study
from benchmarks.averaging.runs import Run
from benchmarks.averaging.settings import ARMS, ARRIVALS, BASE, MODELS, WANTED, Arm, Schedule
from benchmarks.averaging.tasks import task_of
from benchmarks.averaging.threads import train
from benchmarks.reporting import report, writing
from benchmarks.studies.store import append
from examples.text import corpus
from examples.text.vocabulary import PAD
from hvd_sparse.averaging.lossy import Lossy
from tests.examples import messages

NAMES = ("first", "second", "third")


@pytest.fixture(scope="module")
def catalogues(tmp_path_factory):
    """Three programs with different messages, and a catalogue of names; some messages are in two of them."""
    folder = tmp_path_factory.mktemp("texts")
    places = itertools.product(messages.COLOURS, messages.THINGS, ("here", "there", "away", "at home"))
    everything = [f"{colour} {thing} {where}" for colour, thing, where in places]
    verbs = {"first": "open the", "second": "no such", "third": "close this"}
    for name, verb in verbs.items():
        own = {f"{verb} {text}": text for text in everything[:280]}
        shared = {f"all know {text}": text for text in everything[280:]} if name != "third" else {"word": "Wort"}
        messages.write(folder / "de" / "LC_MESSAGES" / f"{name}.mo", own | shared)
    messages.write(folder / "de" / "LC_MESSAGES" / "iso_639.mo", {f"old name {text}": text for text in everything})
    return folder


@pytest.fixture(scope="module")
def small(catalogues):
    """Makes both models so small that a training takes a second."""
    schedule = Schedule(2, 0.05, batch=8)
    images = dataclasses.replace(MODELS["resnet"], schedule=schedule, train=192, held_out=96, watched=32)
    sentences = dataclasses.replace(
        MODELS["lstm"],
        **{"schedule": dataclasses.replace(schedule, rate=0.2), "programs": 3, "most": 60, "vocabulary": 330},
        **{"pieces": 6, "features": 4, "cells": 5, "folder": str(catalogues)},
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(MODELS, "resnet", images)
        patch.setitem(MODELS, "lstm", sentences)
        yield MODELS


@pytest.fixture(scope="module")
def trained(small):
    """Trains the LSTM cells on two ranks in an arm, once per seed."""
    return functools.cache(lambda arm, seed=0: train(task_of(small["lstm"]), arm, 2, seed))


# ---- the data ----


def test_each_message_is_in_one_part_and_of_one_program(catalogues):
    divided = averaging_data.corpus_of(3, 250, 0.1, str(catalogues))
    parts = [{" ".join(corpus.words(pair.source)) for pair in part} for part in divided[:3]]
    assert all(parts) and not any(one & other for one, other in itertools.combinations(parts, 2))
    assert sum(map(len, parts)) == sum(map(len, divided[:3])) == 3 * 250
    pairs = [pair for part in divided[:3] for pair in part]
    assert {pair.target for pair in pairs} == set(NAMES)
    assert not any(pair.source.startswith(("all know", "old name", "word")) for pair in pairs)


def test_what_is_left_of_a_program_does_not_change_how_it_is_divided(catalogues):
    fewer, more = (averaging_data.corpus_of(3, most, 0.1, str(catalogues)) for most in (50, 250))
    assert corpus.digest(fewer) != corpus.digest(more)
    assert all(set(some) <= set(others) for some, others in zip(fewer[:3], more[:3], strict=True))


def test_messages_end_with_their_last_piece_and_a_regression_tells_these_programs(catalogues):
    data = averaging_data.programs(3, 250, 330, 6, 0.1, str(catalogues))
    assert data.names == NAMES and data.train.pieces.shape == (len(data.train.labels), 6)
    assert (data.train.pieces[:, -1] != PAD).all() and set(data.train.labels) == {0, 1, 2}
    told = averaging_data.regression(data, 330)
    assert told.score > 90 and 0 < told.loss < 1


def test_too_few_programs_are_refused(catalogues):
    with pytest.raises(RuntimeError, match="at least 4 programs, found 3"):
        averaging_data.corpus_of(4, 250, 0.1, str(catalogues))


# ---- trainings ----


def test_the_rate_rises_to_that_of_all_ranks_and_falls_twice():
    rates = Schedule(epochs=10, rate=0.1, warm_up=0.2).rates(steps=40, ranks=4)
    assert rates[0] == pytest.approx(0.1 * (1 + 3 / 8)) and rates[7:20] == pytest.approx([0.4] * 13)
    assert rates[20:30] == pytest.approx([0.04] * 10) and rates[30:] == pytest.approx([0.004] * 10)


def test_no_loss_is_reliable_to_the_bit_and_seeds_differ(trained):
    lossless = Arm("none is lost", 1.0 - 1e-9)  # its loss probability is rounded to 0
    assert lossless.transport(0) == Lossy(0.0)
    full = trained(ARMS[BASE])
    assert full == trained(lossless) and full["weights"] != trained(ARMS[BASE], 1)["weights"]
    assert full["lost"] == full["distance"] == 0.0


def test_losses_follow_from_the_seed_and_part_models(small, trained):
    lossy = Arm("30%", 0.3)
    some, again = trained(lossy), trained(dataclasses.replace(lossy, name="the same"))
    assert some == again and some["weights"] != trained(ARMS[BASE])["weights"]
    assert 0.5 < some["lost"] < 0.9 and some["distance"] > 1e-4
    assert some["steps"] == 2 * task_of(small["lstm"]).steps(2) and len(some["curve"]) == len(some["losses"]) == 2


def test_another_order_of_ranks_changes_rounding_alone(trained):
    full, turned = trained(ARMS[BASE]), trained(ARMS["again"])
    assert turned["fitted"] == pytest.approx(full["fitted"], abs=1e-4)


@pytest.mark.thorough
@pytest.mark.parametrize("arm", ["gradients100", "gradients95", "published99", "every8"])
def test_the_other_arms_train(arm, trained):
    outcome = trained(ARMS[arm])
    assert outcome["losses"][1] < outcome["losses"][0] and 0 <= outcome["lost"] < 0.2
    if arm == "gradients100":
        assert outcome["fitted"] == pytest.approx(trained(ARMS[BASE])["fitted"], abs=1e-4)
        assert outcome["distance"] == 0.0


@pytest.mark.thorough
def test_images_are_learnt_with_statistics_of_each_rank(small):
    task = task_of(small["resnet"])
    outcome = train(task, ARMS["arrival80"], 2, 0)
    assert outcome["losses"][1] < outcome["losses"][0] and len(outcome["curve"]) == 2
    assert 0 <= outcome["final"] <= 100 and outcome["fitted"] > 0 and outcome["distance"] > 1e-4
    state = task.begin(0)
    _, moved, _ = task.gradient(*state, *task.batch(task.order(0, 0), 0, 0, 0))
    assert len(state.statistics) > 0 and not np.array_equal(moved, state.statistics)


# ---- the queue ----


def test_a_fingerprint_tells_a_run_from_all_others():
    run = Run("resnet", "arrival99", 4, 1.0, 0)
    others = [dataclasses.replace(run, arm=arm) for arm in ARMS if arm != run.arm]
    others += [dataclasses.replace(run, **changed) for changed in ({"ranks": 8}, {"seed": 1}, {"epochs": 3})]
    others += [dataclasses.replace(run, **changed) for changed in ({"rate": 2.0}, {"model": "resnet20"})]
    assert len({each.fingerprint() for each in (run, *others)}) == 1 + len(others)
    assert run.fingerprint() == dataclasses.replace(run).fingerprint()


def outcome_of(run, best=1.0):
    """A made-up outcome of a run; the closer its learning rate is to the best one, the better."""
    lost = 1.0 - ARMS[run.arm].arrival
    score = 70.0 + run.seed - abs(run.rate - best) - 2.0 * lost - 0.01 * run.seed * lost
    worse = lost * (10.0 if ARMS[run.arm].gradients else 0.1) * (1.0 + 0.01 * run.seed)
    return {
        **{"final": score, "own": score - 0.5, "loss": 1.0, "fitted": 0.1 + worse, "trained": 0.2 + worse},
        **{"curve": [30.0, score], "losses": [2.0, 0.2 + worse], "distance": lost / 10, "lost": lost},
        **{"size": 100, "steps": 8, "seconds": 6.0, "weights": "", "fingerprint": run.fingerprint()},
    }


def test_all_arms_take_the_rate_that_is_best_without_loss_and_finished_runs_are_not_made_again(tmp_path):
    made = []

    def make(wanted, store):
        made.append(len(wanted))
        for run in wanted:
            append(store, outcome_of(run, best=2.0))

    study = Study(tmp_path / "runs.jsonl", 0, [0.5, 1.0, 2.0], [0, 1], [2, 4], make)
    outcomes, tried = study.outcomes(["resnet"], [BASE, "arrival99"])
    assert tried == {"resnet": [0.5, 1.0, 2.0]} and made == [3, 7]
    assert {(run.arm, run.ranks, run.seed) for run in outcomes} == set(
        itertools.product((BASE, "arrival99"), (2, 4), (0, 1))
    )
    assert {run.rate for run in outcomes} == {2.0}
    assert study.outcomes(["resnet"], [BASE, "arrival99"])[0] == outcomes and len(made) == 2
    fewer = dataclasses.replace(study, seeds=[0])
    assert fewer.outcomes(["resnet"], [BASE, "arrival99"])[0] == outcomes, "finished seeds are told, too"


@pytest.mark.parametrize(
    "words",
    [["--arms", "full,other"], ["--seeds", "21"], ["--models", "vgg"], ["--ranks", "4,1"], ["--questions", "x"]],
)
def test_what_a_study_cannot_be_is_refused(words, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["bench_averaging", *words])
    with pytest.raises(SystemExit):
        bench_averaging.main()
    told = capsys.readouterr().err
    assert "expected" in told and words[1] in told


# ---- the report ----


def test_what_is_wanted_is_of_arms_that_there_are():
    assert {wanted.arm for wanted in WANTED} | set(ARRIVALS) <= set(ARMS)
    assert {model for wanted in WANTED for model in wanted.models} == set(MODELS)


def test_the_report_pairs_by_seed_and_judges(tmp_path):
    runs = [Run("resnet", arm, ranks, 1.0, seed) for arm in ARMS for ranks in (4, 8) for seed in range(3)]
    section = averaging_report.summarise({run: outcome_of(run) for run in runs}, {"resnet": ["One.", "Two."]})
    verdicts = {verdict.what: verdict for verdict in section.verdicts}
    assert len(verdicts) == 8
    near = verdicts["resnet, 4 ranks: 95% - 100%, points of top-1, 95%"]
    assert (near.wanted, near.measured, near.met) == ("within 0.5", "-0.10 (-0.10 to -0.10)", True)
    gradients = verdicts["resnet, 8 ranks: gradients, 99% - 100%, training loss, 95%"]
    assert (gradients.wanted, gradients.measured, gradients.met) == ("> 0", "+0.101 (+0.099 to +0.103)", True)
    line = next(line for line in section.lines if line.startswith("| 80% |"))
    assert "| x 1 | 3 | 20.00% | 0.120 | +0.020 (+0.020 to +0.021) |" in line and "| -0.40 (-0.41 to -0.40) |" in line
    text = report.of_questions("T", [report.Answer(section, "By hand.")])
    assert text.count("One. Two.") == 1 and text.count("### resnet") == 2
    for block in text.split("\n\n"):
        if block.startswith("|"):
            assert len({line.count("|") for line in block.strip().split("\n")}) == 1
    averaging_report.draw(section.figures, str(tmp_path / "curves.png"))
    assert (tmp_path / "curves.png").stat().st_size > 3_000


def test_one_seed_shows_nothing():
    runs = [Run("lstm", arm, 4, 1.0, 0) for arm in (BASE, "arrival99", "gradients99")]
    near, apart = averaging_report.summarise({run: outcome_of(run) for run in runs}, {}).verdicts
    assert (near.measured, near.met) == ("+0.001, one seed", False)
    assert (apart.measured, apart.met) == ("+0.100, one seed", False)


def test_a_report_of_both_models_at_all_ranks_stays_small():
    runs = [
        Run(model, arm, ranks, 1.0, seed)
        for model, arm, ranks, seed in itertools.product(("resnet", "lstm"), ARMS, (4, 8, 16), range(8))
    ]
    outcomes = {
        run: {
            **dict.fromkeys(("final", "own", "loss", "fitted", "trained", "distance", "lost"), 1 / 3),
            "losses": [1 / 3] * 24,
        }
        for run in runs
    }
    section = averaging_report.summarise(outcomes, {})
    assert len(writing.as_json(section.figures)) < 0.9 * writing.LARGEST_JSON


# ---- runs ----


@pytest.mark.thorough
def test_the_command_trains_and_tells(tmp_path, small, monkeypatch, capsys):
    monkeypatch.setattr(writing, "RESULTS", tmp_path)
    store = tmp_path / "runs.jsonl"
    words = ["--models", "lstm", "--arms", "full,arrival80,gradients95", "--ranks", "2", "--seeds", "1", "--rates", "1"]
    monkeypatch.setattr("sys.argv", ["bench_averaging", "--questions", "convergence", "--store", str(store), *words])
    bench_averaging.main()
    assert "### lstm, 2 ranks" in capsys.readouterr().out
    outcomes = [json.loads(line) for line in store.read_text().splitlines()]
    assert len(outcomes) == 3 and len({each["weights"] for each in outcomes}) == 3
    assert all(len(each["curve"]) == 2 and 0 <= each["final"] <= 100 for each in outcomes)
    assert {path.name for path in tmp_path.iterdir()} == {
        "runs.jsonl",
        *(f"averaging.{end}" for end in ("json", "md", "png")),
    }
    assert "A logistic regression on bags of pieces tells" in (tmp_path / "averaging.md").read_text()
    bench_averaging.main()
    assert "0 of them to be made" in capsys.readouterr().out
