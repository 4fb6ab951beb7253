"""The convergence study: its statistics, data and report, and runs of two ranks as the benchmark makes them."""

import dataclasses
import json
import math
import sys

import keras
import numpy as np
import pytest

import lars
from benchmarks.convergence import bench_convergence
from benchmarks.convergence import data as convergence_data
from benchmarks.convergence import report as convergence_report
from benchmarks.convergence import runs as convergence_runs
from benchmarks.convergence import tasks as convergence_tasks
from benchmarks.convergence.bench_convergence import Study
from benchmarks.convergence.runs import Cluster, Run
from benchmarks.convergence.settings import ARMS, DENSE, MODELS, TRAINED, ImageSettings
from benchmarks.reporting import report
from benchmarks.studies import jobs
from benchmarks.studies import store as store_of_runs
from benchmarks.studies.paired import STUDENT, difference

pytestmark = pytest.mark.thorough

# ---- statistics ----


def test_the_interval_is_students():
    # Gaps 1, 2, 3, 4, 5: mean 3, deviation sqrt(2.5), and t(4) = 2.776 at 95%.
    found = difference([11, 12, 13, 14, 15], [10, 10, 10, 10, 10])
    assert found.mean == 3 and found.pairs == 5
    assert found.half == pytest.approx(2.776 * math.sqrt(2.5) / math.sqrt(5))
    assert (found.low, found.high) == pytest.approx((3 - 1.963, 3 + 1.963), abs=1e-3)


def test_pairs_matter_and_not_the_spread_of_seeds():
    base = np.array([60.0, 70.0, 80.0, 65.0, 75.0])
    found = difference(base + [0.1, -0.1, 0.1, -0.1, 0.0], base)
    assert found.mean == pytest.approx(0, abs=1e-9) and found.half < 0.2
    assert difference(base[::-1], base).half > 5


def test_the_interval_holds_what_it_says():
    random = np.random.default_rng(0)
    held = [
        found.low <= 0.5 <= found.high
        for found in (difference(random.normal(0.5, 1, 5), np.zeros(5)) for _ in range(4000))
    ]
    assert 0.94 < np.mean(held) < 0.96


def test_what_does_not_pair_is_refused_and_one_pair_tells_nothing():
    with pytest.raises(ValueError, match="got 2 and 3 values"):
        difference([1, 2], [1, 2, 3])
    assert difference([1], [2]).half == math.inf


def test_quantiles_are_those_of_students_distribution():
    scipy = pytest.importorskip("scipy.stats")
    wanted = [scipy.t.ppf(0.975, freedom) for freedom in range(1, len(STUDENT))]
    assert STUDENT[1:] == pytest.approx(wanted, abs=5e-4)


# ---- data ----


def test_halves_have_no_pixel_in_common():
    lefts, rights = convergence_data.halves("left"), convergence_data.halves("right")
    wholes = [
        np.asarray(image.convert("L")) for _, image in sorted(convergence_data.photographs.load(further=True).items())
    ]
    assert len(lefts) == len(rights) == len(wholes) >= 16
    for left, right, whole in zip(lefts, rights, wholes, strict=True):
        assert left.shape[1] + right.shape[1] <= whole.shape[1]
        np.testing.assert_array_equal(left, whole[:, : left.shape[1]])
        np.testing.assert_array_equal(right, whole[:, whole.shape[1] - right.shape[1] :])
    with pytest.raises(ValueError, match="left or right, got 'upper'"):
        convergence_data.halves("upper")


@pytest.mark.parametrize("half", ["left", "right"])
def test_crops_come_from_their_own_half_alone(half, monkeypatch):
    kind = type(next(iter(convergence_data.photographs.load(1).values())))
    dark, bright = np.zeros((64, 64), np.uint8), np.full((64, 64), 255, np.uint8)
    dark[::2], bright[::2] = 16, 250  # not flat, and pixels show their half before the mean is subtracted
    whole = np.hstack([dark, bright])
    seen = []
    original = convergence_data._crop
    monkeypatch.setattr(
        convergence_data, "_crop", lambda source, random: seen.append(source) or original(source, random)
    )
    from PIL import Image

    monkeypatch.setattr(convergence_data.photographs, "load", lambda **_: {"made": Image.fromarray(whole)})
    assert issubclass(kind, Image.Image)
    convergence_data.crops(half, 4, 0)
    assert all(source.max() <= 16 if half == "left" else source.min() >= 250 for source in seen) and len(seen) == 4


def test_crops_are_the_same_for_the_same_seed_and_balanced():
    one, again, other = (convergence_data.crops("left", 60, seed) for seed in (3, 3, 4))
    np.testing.assert_array_equal(one.images, again.images)
    assert np.any(one.images != other.images)
    assert one.images.shape == (60, 32, 32, 1) and one.images.dtype == np.float32
    assert np.ptp(np.bincount(one.labels)) == 0
    np.testing.assert_allclose(one.images.mean(axis=(1, 2, 3)), 0, atol=1e-5)


def test_ranks_share_crops_and_leave_none_out():
    whole = convergence_data.crops("right", 41, 0)
    parts = [whole.part(rank, 4) for rank in range(4)]
    assert sorted(np.concatenate([part.labels for part in parts])) == sorted(whole.labels)
    assert sum(part.images.sum(dtype="f8") for part in parts) == pytest.approx(whole.images.sum(dtype="f8"), abs=1e-3)


def test_noise_is_as_strong_as_it_is_said():
    crops = convergence_data.crops("left", 20, 0)
    added = convergence_data.noisy(crops.images, 0.5, np.random.default_rng(0)) - crops.images
    assert added.std() == pytest.approx(0.5, rel=0.02) and added.dtype == np.float32


# ---- the report ----


def made_up(seeds=5, gap=0.2, models=MODELS, arms=ARMS):
    """Outcomes of all arms of models, each `gap` below the one before it, which sends twice as many bytes."""
    outcomes = {}
    for model in models:
        for number, arm in enumerate(each for each in TRAINED[model] if each in arms):
            for seed in range(seeds):
                final = 70 + 3 * seed - gap * number + 0.01 * seed * number
                outcomes[Run(model, arm, 1.0, seed)] = {
                    "final": final,
                    "top5": 95.0,
                    "loss": 2.0,
                    "curve": [40, 60, final],
                    "error": 100 - final,
                    "across": 1e9 / 2**number,
                    "seconds": 6.0,
                }
    return outcomes


def about(*models):
    return {
        "command": "c",
        "cluster": Cluster(),
        "minutes": 3.0,
        "settings": {model: {"rate": 1} for model in models},
    }


def test_a_section_pairs_by_seed_and_judges():
    section = convergence_report.summarise(made_up(), "small_vgg")
    frontier, equal, dense = section.verdicts
    assert frontier.measured.startswith("momentum, warm-up: -0.72") and frontier.wanted == ">= -0.4"
    assert not frontier.met
    assert equal.met and equal.measured == "-0.18 (-0.20 to -0.16)"
    assert dense.met and dense.measured == "76.00"
    assert convergence_report.summarise(made_up(gap=0.1), "small_vgg").verdicts[0].met
    assert not convergence_report.summarise(made_up(gap=1.1), "small_vgg").verdicts[1].met
    assert section.figures["differences"]["hitopk"]["mean"] == pytest.approx(-0.54)
    assert section.figures["share"]["hitopk"] == 1 / 8


def test_every_model_has_the_arm_that_all_are_compared_with():
    for model, arms in TRAINED.items():
        section = convergence_report.summarise(made_up(models=[model]), model)
        assert arms[0] == DENSE and list(section.figures["differences"]) == list(arms)


def test_a_study_of_some_arms_has_their_differences_alone():
    section = convergence_report.summarise(made_up(arms=("torus2d", "bucket16")), "small_resnet")
    assert list(section.figures["final"]) == ["torus2d", "bucket16"]
    assert section.lines[-1].startswith("| 16 of 512, 4 bits | x 1 | 5 | 1/2 | 75.82 ± 4.76 | -0.18 (-0.20 to -0.16) |")


def test_without_dense_nothing_is_compared():
    section = convergence_report.summarise(made_up(arms=("topk", "hitopk")), "small_resnet")
    assert section.figures["differences"] == {} and [verdict.wanted for verdict in section.verdicts] == ["within 1"]


@pytest.mark.parametrize(
    "words", [["--recipes", "torus2d,other"], ["--recipes", "bucket4"], ["--seeds", "21"], ["--models", "vgg"]]
)
def test_what_a_study_cannot_be_is_refused(words, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["bench_convergence", "--models", "small_vgg", *words])
    with pytest.raises(SystemExit):
        bench_convergence.main()
    told = capsys.readouterr().err
    assert "expected" in told and words[1] in told


def test_a_command_names_no_file_of_this_machine():
    assert report.command("topk", ["--store", "/somewhere", "--seeds", "3"]) == "bench_topk --seeds 3"
    assert report.command("topk", ["--seeds", "3", "--store=/somewhere"]) == "bench_topk --seeds 3"
    assert report.command("topk", ["--store", "/somewhere"]) == "make bench-topk"
    assert report.command("topk", ["--folder", "/somewhere", "--dry"]) == "bench_topk --dry"


def test_a_seed_that_an_arm_lacks_is_in_no_pair():
    outcomes = made_up()
    del outcomes[Run("small_vgg", "topk", 1.0, 2)]
    figures = convergence_report.summarise(outcomes, "small_vgg", {"topk": [0.5, 1.0]})
    assert {arm: figures.figures["differences"][arm]["pairs"] for arm in ("topk", "hitopk")} == {"topk": 4, "hitopk": 5}
    assert figures.figures["seeds"]["topk"] == [0, 1, 3, 4]
    assert [line for line in figures.lines if line.startswith("| TopK-SGD | x 1 of 0.5, 1 | 4 |")]


def test_report_and_picture_hold_all_models(tmp_path):
    outcomes = made_up()
    sections = [convergence_report.summarise(outcomes, model) for model in MODELS]
    text = convergence_report.render(sections, about(*MODELS))
    for block in text.split("\n\n"):
        if block.startswith("|"):
            assert len({line.count("|") for line in block.strip().split("\n")}) == 1
    assert all(f"## {model}" in text for model in MODELS) and "## Targets" in text
    convergence_report.draw(sections, str(tmp_path / "curves.png"))
    assert (tmp_path / "curves.png").stat().st_size > 3_000


def test_what_was_trained_elsewhere_is_told_beside_the_study(tmp_path):
    study = Study(tmp_path / "runs.jsonl", Cluster(), 0, [1.0], 3, 2, make_up)
    asked = {"transformer": ["torus2d", "updates"], "lstm": ["torus2d", "updates"]}
    assert bench_convergence.elsewhere(study, asked) == []
    longer = dataclasses.replace(study, epochs=30)
    longer.outcomes({"transformer": ["torus2d", "updates"], "lstm": ["updates"]})
    (other,) = bench_convergence.elsewhere(study, asked)
    assert other.title == "transformer, thirty epochs"
    assert [verdict.wanted for verdict in other.verdicts] == [">= -0.7"] and not other.verdicts[0].met
    outcomes = made_up(models=["transformer"])
    text = convergence_report.render(
        [convergence_report.summarise(outcomes, "transformer")], about("transformer"), [other]
    )
    assert "| transformer, thirty epochs: the best arm at 1/40" in text and "\n## transformer, thirty epochs\n" in text


def make_up(wanted, store):
    """Finished runs: dense ends 1 point above the others, which send a hundredth of its bytes."""
    for run in wanted:
        dense = run.arm == "torus2d"
        final = 30.0 + run.seed + dense
        made = {"final": final, "top5": 0.0, "loss": 2.0, "curve": [final], "error": 2.0, "seconds": 1.0}
        outcome = {**made, "across": 1e9 if dense else 1e7, "fingerprint": run.fingerprint()}
        store_of_runs.append(store, outcome)


# ---- the queue ----


def test_a_runs_fingerprint_tells_it_from_all_others():
    run = Run("small_vgg", "hitopk", 1.0, 0)
    others = [
        Run("small_resnet", "hitopk", 1.0, 0),
        Run("small_vgg", "topk", 1.0, 0),
        Run("small_vgg", "hitopk", 1.5, 0),
        Run("small_vgg", "hitopk", 1.0, 1),
        Run("small_vgg", "hitopk", 1.0, 0, epochs=30),
        Run("small_vgg", "hitopk", 1.0, 0, cluster=Cluster(4, 1)),
        Run("small_vgg", "hitopk", 1.0, 0, cluster=Cluster(density=0.001)),
    ]
    assert len({each.fingerprint() for each in (run, *others)}) == 8
    assert run.fingerprint() == Run("small_vgg", "hitopk", 1.0, 0).fingerprint()
    assert run.settings() == ImageSettings(rate=0.05)
    assert Run("small_vgg", "hitopk", 2.0, 0, 30).settings() == ImageSettings(rate=0.1, epochs=30)


def test_a_store_that_was_cut_off_keeps_its_whole_lines(tmp_path):
    store, runs = tmp_path / "folder" / "runs.jsonl", [Run("small_vgg", "hitopk", 1.0, seed) for seed in range(3)]
    assert store_of_runs.load(store, runs) == {}
    store_of_runs.append(store, {"fingerprint": runs[0].fingerprint(), "final": 1.0})
    with open(store, "a") as file:
        file.write('{"fingerprint": "cut o')
    assert list(store_of_runs.load(store, runs)) == runs[:1]
    store_of_runs.append(store, {"fingerprint": runs[1].fingerprint(), "final": 2.0})
    store_of_runs.append(store, {"fingerprint": runs[0].fingerprint(), "final": 3.0})
    assert [each["final"] for each in store_of_runs.load(store, runs).values()] == [3.0, 2.0]
    assert store.read_text().count("\n") == 3


def test_each_arm_goes_on_at_its_best_rate_and_finished_runs_are_not_made_again(tmp_path):
    made = []

    def make(wanted, store):
        made.append(list(wanted))
        for run in wanted:
            best = 2.0 if run.arm == "torus2d" else 0.5
            error = abs(run.rate - best)
            outcome = {"final": 70.0 - error, "curve": [0.0, 70.0 - error], "error": -error}
            store_of_runs.append(store, {"fingerprint": run.fingerprint(), **outcome})

    study = Study(tmp_path / "runs.jsonl", Cluster(), 0, [0.5, 1.0, 2.0], 3, 2, make)
    asked = {"small_vgg": ["torus2d", "dense", "hitopk"]}
    found, tried = study.outcomes(asked)
    assert tried == {"small_vgg": {"torus2d": [0.5, 1.0, 2.0], "dense": [], "hitopk": [0.5, 1.0, 2.0]}}
    assert {(run.arm, run.rate) for run in found} == {("torus2d", 2.0), ("dense", 2.0), ("hitopk", 0.5)}
    assert [len(each) for each in made] == [12, 5] and len(found) == 9
    assert study.outcomes(asked)[0] == found and len(made) == 2
    store = tmp_path / "some.jsonl"
    for run, outcome in list(found.items())[:4]:
        store_of_runs.append(store, {"fingerprint": run.fingerprint(), **outcome})
    some, tried = dataclasses.replace(study, store=store, make=None).outcomes(asked)
    assert {run: some[run]["final"] for run in some} == {run: found[run]["final"] for run in list(found)[:4]}
    assert tried == {"small_vgg": {"torus2d": [2.0], "dense": [], "hitopk": [0.5]}}


def test_runs_and_epochs_are_shown_while_they_go_on(capsys):
    said = ["[0]<stdout>:epoch 1, 9.0 s: bleu 2.1\n", "[1]<stdout>:epoch of another\n", "[0]<stdout>:> [1/2] lstm\n"]
    assert jobs.shown([*said, "[0]<stderr>:epoch 1\n"]) == f"{said[1]}[0]<stderr>:epoch 1\n"
    assert capsys.readouterr().out == "    epoch 1, 9.0 s: bleu 2.1\n  [1/2] lstm\n"


# ---- runs ----

SMALL = {"epochs": 2, "train": 64, "held_out": 40, "watched": 20, "batch": 4}
TWO = Cluster(2, 1, 0.1)


def runs_of(*seeds, arm="hitopk", model="small_vgg"):
    return [Run(model, arm, 1.0, seed, cluster=TWO) for seed in seeds]


def small(monkeypatch, **changed):
    """Reduces the study's models by changing their settings."""
    for model, settings in changed.items():
        monkeypatch.setitem(MODELS, model, dataclasses.replace(MODELS[model], **settings))


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Runs of two ranks, all from one launch."""
    store = tmp_path_factory.mktemp("runs") / "runs.jsonl"
    resnets = [*runs_of(0, model="small_resnet"), *runs_of(0, arm="commlib", model="lars_resnet")]
    wanted = [*runs_of(0, 1, arm="torus2d"), *runs_of(0, 1), *resnets]
    with pytest.MonkeyPatch.context() as monkeypatch:
        small(monkeypatch, small_vgg=SMALL, small_resnet=SMALL, lars_resnet={**SMALL, "warm_up": 1.0})
        convergence_runs.make(wanted, store)
        return store_of_runs.load(store, wanted)


def test_runs_end_with_what_the_report_needs(trained):
    assert len(trained) == 6
    for outcome in trained.values():
        assert len(outcome["curve"]) == SMALL["epochs"] and all(0 <= point <= 100 for point in outcome["curve"])
        assert 0 <= outcome["final"] <= outcome["top5"] <= 100 and outcome["loss"] > 0 < outcome["error"]
        assert outcome["final"] * 0.2 == pytest.approx(round(outcome["final"] * 0.2))  # of 20 crops
    assert len({outcome["weights"] for outcome in trained.values()}) == 6  # recipe, seed or model differ
    dense, sparse = (trained[each]["across"] for each in (*runs_of(0, arm="torus2d"), *runs_of(0)))
    assert 0 < sparse < 0.3 * dense


def test_a_trust_coefficient_makes_it_lars():
    made = convergence_tasks._optimizer(MODELS["lars_resnet"], 0.1)
    assert isinstance(made, lars.LARS) and (made.trust_coefficient, made.weight_decay) == (0.05, 5e-4)
    assert type(convergence_tasks._optimizer(MODELS["small_resnet"], 0.1)) is keras.optimizers.SGD


def test_a_run_does_not_depend_on_those_before_it(trained, tmp_path, monkeypatch):
    small(monkeypatch, small_vgg=SMALL)
    convergence_runs.make(runs_of(1), tmp_path / "runs.jsonl")
    (again,) = store_of_runs.load(tmp_path / "runs.jsonl", runs_of(1)).values()
    (run,) = runs_of(1)
    differ = {name for name, value in again.items() if value != trained[run][name]}
    assert differ <= {"seconds"}


@pytest.mark.parametrize("ranks", ["real", "threads"])
def test_ranks_that_fail_are_an_error_with_what_they_said(ranks, tmp_path):
    job = {
        "store": str(tmp_path / "runs.jsonl"),
        "runs": [{**dataclasses.asdict(runs_of(0)[0]), "settings": {"rates": 1}, "fingerprint": ""}],
    }
    path = tmp_path / "job.json"
    path.write_text(json.dumps(job))
    waits = [sys.executable, "-c", "import time; time.sleep(600)"]  # is ended when the other fails
    fails = convergence_runs.on_ranks(path, TWO) if ranks == "real" else convergence_runs.on_threads(path, 0)
    with pytest.raises(RuntimeError, match="unexpected keyword argument 'rates'"):
        jobs.launch([waits, fails], TWO.local)


def test_threads_are_no_ranks_for_what_each_rank_draws_for_itself(tmp_path):
    with pytest.raises(RuntimeError, match="Expected a model for translation, got small_vgg"):
        convergence_runs.simulate(runs_of(0), tmp_path / "runs.jsonl")
