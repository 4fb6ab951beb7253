"""The study of gradient dropping: its simulated jobs, its queue, its report, and a small run of the command."""

from __future__ import annotations

import dataclasses
import json
import secrets

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.dropping import bench_dropping
from benchmarks.dropping import report as dropping_report
from benchmarks.dropping import runs as dropping_runs
from benchmarks.dropping.bench_dropping import Study
from benchmarks.dropping.runs import Run
from benchmarks.dropping.settings import ARMS, CLIENTS, MODELS, MORE, QUESTIONS, TRAINED, Timing
from benchmarks.dropping.simulation import Job, Pace, shards_of
from benchmarks.reporting import writing
from benchmarks.studies.store import append, load
from hvd_sparse.compression.error_feedback import ErrorFeedback
from hvd_sparse.compression.selectors import TopK
from hvd_sparse.compression.thresholds import SampledThreshold
from hvd_sparse.compression.updates import LocalUpdates
from hvd_sparse.servers.applying import ServedPieces
from hvd_sparse.servers.joining import serve
from hvd_sparse.servers.member import start
from hvd_sparse.servers.messages import Entries
from hvd_sparse.servers.pushing import unpacked
from hvd_sparse.servers.rules import InOrderOfArrival, Together
from hvd_sparse.servers.settings import Settings
from hvd_sparse.transport.meeting import Meeting
from tests.datacache.node import free_addresses
from tests.examples import messages
from tests.servers import members, simulated

SEEDS = st.integers(0, 2**31 - 1)


class Bowl:
    """A loss whose gradient is the parameters' distance from a target that differs from batch to batch."""

    def __init__(self, batches: int):
        self.batches = batches
        self.taken: list[int] = []

    def gradient(self, batch, parameters):
        self.taken.append(batch)
        return tf.constant(parameters - np.random.default_rng(batch).standard_normal(len(parameters), np.float32))

    def rate(self, step):
        return 0.5 / (1 + step)


def pace(seed=0, clients=CLIENTS, **changed):
    given = {"computing": 1.0, "spread": 0.3, "slowness": (1.0,) * clients, "bandwidth": 1e3, "latency": 0.01}
    return Pace(**{**given, **changed}, seed=seed)


def job(work, how, at):
    begin = simulated.variables(np.random.default_rng(0))
    return Job(work, begin, keras.optimizers.Adagrad(0.1), how, at)


def sparse(rule, density=0.3):
    chosen = SampledThreshold(density)
    return Settings(ErrorFeedback(chosen), chosen, rule, None)


# ---- the simulation ----


@settings(max_examples=4, deadline=None)
@given(seed=SEEDS, bound=st.sampled_from([None, 0, 3]))
def test_a_seed_gives_the_same_bits_twice_and_every_batch_is_taken_once(seed, bound):
    ends = []
    for _ in range(2):
        work = Bowl(23)
        made = job(work, sparse(InOrderOfArrival(bound)), pace(seed))
        made.run(work.batches)
        assert sorted(work.taken) == list(range(23)) and made.finished == 23
        assert bound is None or max(made.staleness()) <= bound + CLIENTS - 1
        ends.append((made.parameters().tobytes(), made.now, made.sent, made.received))
    assert ends[0] == ends[1]


def test_other_times_are_another_order_of_arrivals():
    ends = []
    for seed in (0, 1):
        work = Bowl(20)
        made = job(work, sparse(InOrderOfArrival()), pace(seed))
        made.run(work.batches)
        ends.append((work.taken, made.parameters().tobytes()))
    (orders, parameters) = zip(*ends, strict=True)
    assert orders[0] != orders[1] and parameters[0] != parameters[1]


def test_synchronous_servers_end_with_the_bits_of_real_ones_over_sockets():
    work, how = Bowl(12), Settings(ErrorFeedback(TopK(0.4)), TopK(0.5), Together(), None)
    made = job(work, how, pace(3, clients=3))
    made.run(work.batches)
    begin = simulated.variables(np.random.default_rng(0))
    shards = shards_of(begin, 3)
    meeting = Meeting(tuple(free_addresses(3)), secrets.token_bytes(32), None)
    started: list = [None] * 3

    def one(rank):
        def parameters(shard):
            return ServedPieces(keras.optimizers.Adagrad(0.1), begin, shards[shard])

        started[rank] = start(serve(parameters, shards, rank, how), shards, rank, meeting, how)

    members.each(3, one)

    def train(rank):
        pushes = members.pushing(started[rank], how)
        for step in range(4):  # all answers arrive at once, and clients take the next batches in their order
            gradient = work.gradient(3 * step + rank, started[rank].connections.copy.values)
            members.step(started[rank], pushes, gradient.numpy(), work.rate(step))

    members.each(3, train)
    final = members.finish(started)
    assert all(each.tobytes() == made.parameters().tobytes() for each in final)


def test_a_lone_client_that_pushes_updates_trains_as_its_optimizer_does():
    work = Bowl(6)
    made = job(work, Settings(LocalUpdates(ErrorFeedback(TopK(1.0))), None, InOrderOfArrival(), None), pace(clients=1))
    made.run(work.batches)
    variables, optimizer = simulated.variables(np.random.default_rng(0)), keras.optimizers.Adagrad(0.1)
    for batch in range(6):
        optimizer.learning_rate = work.rate(batch)
        gradient = work.gradient(batch, np.concatenate([each.numpy().ravel() for each in variables]))
        optimizer.apply(unpacked(gradient, [each.shape for each in variables]), variables)
    alone = np.concatenate([each.numpy().ravel() for each in variables])
    np.testing.assert_allclose(made.parameters(), alone, rtol=1e-6, atol=1e-7)


def test_messages_take_their_share_of_a_step_where_all_is_sent():
    made = Timing(0.5, 0.2, spread=0.0, latency=0.0).pace(1 << 20, (1.0,) * CLIENTS, 0)
    whole = made.flight(Entries(np.zeros((1 << 20) // CLIENTS, np.float32)))
    assert made.durations(0)() == 0.5 and 2 * whole / (0.5 + 2 * whole) == pytest.approx(0.2, rel=1e-3)


def test_a_slow_client_takes_fewer_batches_and_holds_up_those_that_wait_for_it():
    speeds = {}
    for name, rule in {"asynchronous": InOrderOfArrival(), "together": Together()}.items():
        work = Bowl(60)
        made = job(work, sparse(rule), pace(0, slowness=(3.0, 1.0, 1.0, 1.0), latency=0.0, bandwidth=1e9))
        made.run(work.batches)
        speeds[name] = work.batches / made.now
    assert speeds["asynchronous"] > 2 * speeds["together"]


# ---- the queue ----


def test_a_fingerprint_tells_a_run_from_all_others():
    run = Run("mlp", "drop99", 1.0, 0)
    others = [Run("mlp", arm, 1.0, 0) for arm in ARMS if arm != "drop99"]
    others += [Run("mlp", "drop99", 2.0, 0), Run("mlp", "drop99", 1.0, 1), Run("mlp", "drop99", 1.0, 0, 30)]
    assert len({each.fingerprint() for each in (run, *others)}) == 1 + len(others)
    assert run.fingerprint() == Run("mlp", "drop99", 1.0, 0).fingerprint()
    changed = Run("mlp", "drop99", 3.0, 0, 7).settings()
    assert (changed.rate, changed.epochs) == (3 * MODELS["mlp"].rate, 7)


def outcome_of(run, final, rates=(1.0,)):
    """A made-up outcome of a run; the closer its learning rate is to the last of `rates`, the better."""
    final -= abs(run.rate - rates[-1])
    return {
        **{"final": final, "last": final, "copy": final, "loss": 2.0, "size": 100, "samples": 800.0, "seconds": 6.0},
        **{"curve": [10.0, final], "losses": [3.0, 2.0], "times": [4.0, 8.0]},
        **{"pushed": 400.0 * ARMS[run.arm].density, "pulled": 400.0 * ARMS[run.arm].density},
        **{"waited": 0.1, "stale": 3.0, "stalest": 6, "weights": "", "fingerprint": run.fingerprint()},
    }


def test_each_arm_goes_on_at_its_best_rate_and_finished_runs_are_not_made_again(tmp_path):
    made = []

    def make(wanted, store):
        made.append(len(wanted))
        for run in wanted:
            append(store, outcome_of(run, 70.0, [2.0] if run.arm == "dense" else [0.5]))

    study = Study(tmp_path / "runs.jsonl", 0, [0.5, 1.0, 2.0], {"dense": 3, "again": 3, "drop99": 2}, 1, make)
    asked = {"mlp": ["dense", "again", "drop99"]}
    found, tried = study.outcomes(asked)
    assert tried == {"mlp": {"dense": [0.5, 1.0, 2.0], "again": [], "drop99": [0.5, 1.0, 2.0]}}
    assert {(run.arm, run.rate) for run in found} == {("dense", 2.0), ("again", 2.0), ("drop99", 0.5)}
    assert made == [6, 6] and len(found) == 8
    assert study.outcomes(asked)[0] == found and len(made) == 2


@pytest.mark.parametrize("words", [["--arms", "dense,other"], ["--seeds", "21"], ["--models", "vgg"], ["--fewer", "9"]])
def test_what_a_study_cannot_be_is_refused(words, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["bench_dropping", *words])
    with pytest.raises(SystemExit):
        bench_dropping.main()
    told = capsys.readouterr().err
    assert "expected" in told and words[1] in told


# ---- the report ----


def test_every_arm_answers_a_question_and_is_compared_with_one_that_is_trained():
    assert {arm for each in QUESTIONS for arm in (each.base, *each.arms)} == set(ARMS) == set(TRAINED["mlp"])
    assert {each.base_of(arm) for each in QUESTIONS for arm in each.arms} <= set(ARMS) and set(MORE) <= set(ARMS)


def test_the_report_pairs_by_seed_and_judges(tmp_path):
    outcomes = {}
    for place, arm in enumerate(ARMS):
        for seed in range(3):
            run = Run("mlp", arm, 1.0, seed)
            outcomes[run] = outcome_of(run, 70.0 + 5 * seed - 0.1 * place - 0.01 * seed * place)
    questions = dropping_report.answered(outcomes, "mlp")
    assert questions == list(QUESTIONS)
    sections = [dropping_report.summarise(outcomes, "mlp", question) for question in questions]
    near, equal = sections[0].verdicts
    assert near.measured == "-0.33 (-0.40 to -0.26)" and near.met and equal.met
    local = next(line for line in sections[1].lines if line.startswith("| 99%, a threshold for each variable |"))
    assert "| 1/100 | 100 | 8.0 | 3.0, at most 6 |" in local and "| 99% | -0.44 (-0.54 to -0.34) |" in local
    text = dropping_report.render(sections, {"command": "c", "minutes": 3.0, "settings": {"mlp": {"rate": 1}}})
    for block in text.split("\n\n"):
        if block.startswith("|"):
            assert len({line.count("|") for line in block.strip().split("\n")}) == 1
    dropping_report.draw(sections, str(tmp_path / "curves.png"))
    assert (tmp_path / "curves.png").stat().st_size > 3_000


def test_longer_trainings_have_their_own_sections_and_targets(tmp_path, capsys, monkeypatch):
    store = tmp_path / "runs.jsonl"
    for epochs, gap in ((0, -1.5), (30, -0.9)):
        for seed in range(3):
            for arm in ("dense", "updates_fading"):
                run = Run("lstm", arm, 0.5, seed, epochs)
                append(store, outcome_of(run, 30.0 + seed + epochs / 10 + (gap + 0.01 * seed) * (arm != "dense")))
    words = ["--models", "lstm", "--finished", "--rates", "0.5", "--seeds", "3", "--searched", "1"]
    monkeypatch.setattr("sys.argv", ["bench_dropping", "--store", str(store), *words, "--dry"])
    bench_dropping.main()
    told = capsys.readouterr().out
    for name, target, gap in (("lstm", 2, "-1.49"), ("lstm, 30 epochs", 1, "-0.89")):
        compared = "99%, updates, ahead, residuals x 0.99 - nothing dropped, points of BLEU, 95%"
        assert f"| {name}: {compared} | within {target} | {gap}" in told
        assert f"## {name}: updates as pushes" in told


# ---- runs ----


@pytest.mark.thorough
def test_the_command_trains_and_tells(tmp_path, monkeypatch, capsys):
    small = dataclasses.replace(MODELS["mlp"], width=16, epochs=1, train=200, held_out=80, watched=40, looks=2)
    monkeypatch.setitem(MODELS, "mlp", small)
    monkeypatch.setattr(writing, "RESULTS", tmp_path)
    store = tmp_path / "runs.jsonl"
    words = ["--arms", "dense,again,drop99,column", "--seeds", "1", "--fewer", "1", "--searched", "1", "--rates", "1"]
    monkeypatch.setattr("sys.argv", ["bench_dropping", "--store", str(store), *words])
    bench_dropping.main()
    assert "99% - nothing dropped" in capsys.readouterr().out
    outcomes = [json.loads(line) for line in store.read_text().splitlines()]
    assert len(outcomes) == 4 and len({each["weights"] for each in outcomes}) == 4
    assert all(len(each["curve"]) == 2 and 0 <= each["final"] <= 100 and each["loss"] > 0 for each in outcomes)
    assert {path.name for path in tmp_path.iterdir()} == {
        "runs.jsonl",
        *(f"dropping.{end}" for end in ("json", "md", "png")),
    }
    bench_dropping.main()
    assert "0 of them to be made" in capsys.readouterr().out


@pytest.mark.thorough
def test_sentences_are_learnt_by_the_same_clients(tmp_path, monkeypatch):
    catalogues = messages.write_sentences(tmp_path / "texts")
    words = ("--width", "0.125", "--layers", "1", "--vocabulary", "400", "--catalogues", str(catalogues))
    model = MODELS["lstm"]
    small = dataclasses.replace(model, options=(*model.options, *words), epochs=2, looks=2)
    monkeypatch.setitem(MODELS, "lstm", small)
    run = Run("lstm", "drop99", 1.0, 0)
    dropping_runs.make([run], tmp_path / "runs.jsonl")
    (outcome,) = load(tmp_path / "runs.jsonl", [run]).values()
    assert 0 <= outcome["final"] <= 100 and outcome["losses"][1] < outcome["losses"][0]
    assert outcome["pushed"] < 0.03 * 4 * outcome["size"] and outcome["stale"] > 1
