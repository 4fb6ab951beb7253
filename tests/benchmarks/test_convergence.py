"""The convergence study: its statistics, its data, its report, and runs of two ranks as the benchmark makes them."""

import json
import math

import numpy as np
import pytest

from benchmarks import bench_convergence, convergence_data
from benchmarks.bench_convergence import difference
from tests.examples import messages

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
    wanted = [scipy.t.ppf(0.975, freedom) for freedom in range(1, len(bench_convergence.STUDENT))]
    assert bench_convergence.STUDENT[1:] == pytest.approx(wanted, abs=5e-4)


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
    dark[::2], bright[::2] = 16, 250  # not flat; and what a crop was made of can be told before its mean is taken
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


def made_up_runs(seeds=5, gap=0.2):
    runs = {}
    for model in bench_convergence.MODELS:
        for number, arm in enumerate(bench_convergence.TRAINED[model]):
            for seed in range(seeds):
                final = 70 + 3 * seed - gap * number + 0.01 * seed * number
                runs[model, arm, seed] = {"final": final, "top5": 95.0, "curve": [40, 60, final], "seconds": 6.0}
    return runs


def test_a_section_pairs_by_seed_and_judges():
    section = bench_convergence.summarise(made_up_runs(), "small_vgg")
    first, dense = section.verdicts
    assert first.met and first.measured == "-0.18 (-0.20 to -0.16)"
    assert dense.met and dense.measured == "76.00"
    assert not bench_convergence.summarise(made_up_runs(gap=1.1), "small_vgg").verdicts[0].met
    assert section.figures["differences"]["hitopk - torus2d"]["mean"] == pytest.approx(-0.54)


def test_every_arm_but_the_first_is_compared_with_it():
    for arms in bench_convergence.TRAINED.values():
        pairs = bench_convergence.pairs(arms)
        assert arms[0] == "torus2d" and {pair.one for pair in pairs if pair.other == "torus2d"} == set(arms[1:])
    assert str(pairs[0]) == "4 of 512 - 2DTAR-SGD" and pairs[0].wanted == 1.0


def test_a_study_of_some_arms_has_their_pairs_alone():
    runs = {run: outcome for run, outcome in made_up_runs().items() if run[1] in ("torus2d", "bucket16")}
    section = bench_convergence.summarise(runs, "small_resnet")
    assert list(section.figures["differences"]) == ["bucket16 - torus2d"]
    assert list(section.figures["final"]) == ["torus2d", "bucket16"]
    assert bench_convergence.table([section])[0] == "| model | 2DTAR-SGD | 16 of 512, 4 bits |"


def test_a_report_of_pairs_without_target_has_no_table_of_targets():
    runs = {run: outcome for run, outcome in made_up_runs().items() if run[1] in ("torus2d", "warmed")}
    section = bench_convergence.summarise(runs, "transformer")
    about = {"command": "c", "density": 0.01, "seeds": [0], "minutes": 3.0, "settings": {"transformer": {"rate": 1}}}
    text = bench_convergence.render([section], about)
    assert "## Targets" not in text and "warmed - torus2d" in section.figures["differences"]
    assert "## Targets" in bench_convergence.render(
        [bench_convergence.summarise(made_up_runs(), "small_vgg")], {**about, "settings": {"small_vgg": {}}}
    )


@pytest.mark.parametrize("recipes", ["torus2d,other", "bucket4"])
def test_recipes_that_a_model_has_not_are_refused(recipes, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["bench_convergence", "--models", "small_vgg", "--recipes", recipes])
    with pytest.raises(SystemExit):
        bench_convergence.main()
    assert f"that each model has, got {recipes}" in capsys.readouterr().err


def test_a_command_names_no_folder_of_this_machine():
    assert bench_convergence.command(["--folder", "/somewhere", "--seeds", "3"]) == "bench_convergence --seeds 3"
    assert bench_convergence.command(["--seeds", "3", "--folder=/somewhere"]) == "bench_convergence --seeds 3"
    assert bench_convergence.command(["--folder", "/somewhere"]) == "make bench-convergence"


def test_a_seed_that_an_arm_lacks_is_in_no_pair():
    runs = made_up_runs()
    del runs["small_vgg", "topk", 2]
    assert len(bench_convergence.finals(runs, "small_vgg", "torus2d")) == 4
    assert bench_convergence.summarise(runs, "small_vgg").figures["differences"]["hitopk - topk"]["pairs"] == 4


def test_table_and_picture_have_the_shape_of_commlibs(tmp_path):
    runs = made_up_runs()
    sections = [bench_convergence.summarise(runs, model) for model in bench_convergence.MODELS]
    header = "| model | 2DTAR-SGD | Dense-SGD | TopK-SGD | MSTopK-SGD | recommended | updates, ahead |"
    assert bench_convergence.table([sections[1]])[0] == header
    first, *rest = bench_convergence.table(sections)
    assert first.endswith("| 4 of 512 | 4 of 512 after two dense epochs | 8 of 512, 4 bits | 16 of 512, 4 bits |")
    trained = "76.00 ± 4.74 | 75.82 ± 4.76 | 75.64 ± 4.78 | 75.46 ± 4.79 |  | 75.28 ± 4.81 | 75.10 ± 4.82"
    assert f"| small_vgg, top-1 | {trained} |  |  |  |  |  |  |" in rest
    about = {"command": "c", "density": 0.01, "seeds": [0], "minutes": 3.0}
    text = bench_convergence.render(
        sections, {**about, "settings": dict.fromkeys(bench_convergence.MODELS, {"rate": 1})}
    )
    for block in text.split("\n\n"):
        if block.startswith("|"):
            assert len({line.count("|") for line in block.strip().split("\n")}) == 1
    bench_convergence.draw(sections, str(tmp_path / "curves.png"))
    assert (tmp_path / "curves.png").stat().st_size > 3_000


# ---- runs ----

FINGERPRINTS = {"small_vgg": "f", "small_resnet": "g", "transformer": "h", "lstm": "i"}
SMALL = {"epochs": 2, "train": 64, "held_out": 40, "watched": 20, "batch": 4}


def runs_of(*seeds, recipe="hitopk", model="small_vgg"):
    return [{"model": model, "recipe": recipe, "seed": seed} for seed in seeds]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Runs of two ranks: what one launch made, by recipe and seed."""
    folder = tmp_path_factory.mktemp("runs")
    wanted = [*runs_of(0, 1, recipe="torus2d"), *runs_of(0, 1), *runs_of(0, model="small_resnet")]
    settings = {"small_vgg": SMALL, "small_resnet": SMALL}
    job = {"local": 1, "folder": str(folder), "density": 0.1, "settings": settings, "fingerprints": FINGERPRINTS}
    bench_convergence.train(wanted, job, ranks=2)
    return folder, job


def test_runs_end_with_what_the_report_needs(trained):
    folder, _ = trained
    runs = bench_convergence.load(folder, FINGERPRINTS)
    assert len(runs) == 5 and bench_convergence.load(folder, {"small_vgg": "other"}) == {}
    for run in runs.values():
        assert len(run["curve"]) == SMALL["epochs"] and all(0 <= point <= 100 for point in run["curve"])
        assert 0 <= run["final"] <= run["top5"] <= 100 and run["final"] * 0.4 == pytest.approx(
            round(run["final"] * 0.4)
        )
    assert len({run["weights"] for run in runs.values()}) == 5  # another recipe, seed or model is another run


def test_a_run_does_not_depend_on_those_before_it(trained, tmp_path):
    folder, job = trained
    bench_convergence.train(runs_of(1), {**job, "folder": str(tmp_path)}, ranks=2)
    again = bench_convergence.load(tmp_path, FINGERPRINTS)["small_vgg", "hitopk", 1]
    first = bench_convergence.load(folder, FINGERPRINTS)["small_vgg", "hitopk", 1]
    assert [again[what] for what in ("weights", "final", "curve", "loss")] == [
        first[what] for what in ("weights", "final", "curve", "loss")
    ]


def test_models_for_translation_train_as_the_networks_do(tmp_path):
    catalogues = messages.write_sentences(tmp_path / "texts")
    words = ["--epochs", "2", "--width", "0.125", "--layers", "1", "--vocabulary", "400"]
    arms = {"transformer": "hitopk", "lstm": "bucket4"}
    settings = {
        model: {"options": [*bench_convergence.MODELS[model].options, *words, "--catalogues", str(catalogues)]}
        for model in arms
    }
    job = {"local": 1, "folder": str(tmp_path), "density": 0.1, "settings": settings, "fingerprints": FINGERPRINTS}
    wanted = [run for model, arm in arms.items() for run in runs_of(0, model=model, recipe=arm)]
    bench_convergence.train(wanted, job, ranks=2)
    for run in map(bench_convergence.load(tmp_path, FINGERPRINTS).get, [(*each, 0) for each in arms.items()]):
        assert len(run["curve"]) == 2 and run["loss"][1] < run["loss"][0]
        assert 0 <= run["final"] <= 100 and 5 < run["top5"] <= 100


def test_finished_runs_are_not_made_again(tmp_path, monkeypatch):
    made_with = bench_convergence.fingerprint("small_vgg", 0.01)
    asked = [("small_vgg", arm, seed) for arm in bench_convergence.TRAINED["small_vgg"] for seed in (0, 1)]
    for model, arm, seed in asked[:-1]:
        run = {"model": model, "recipe": arm, "seed": seed, "final": 70.0, "fingerprint": made_with}
        (tmp_path / f"{model}-{arm}-{seed}.json").write_text(json.dumps(run))
    started = []

    def train(wanted, job):
        started.extend(wanted)
        for run in wanted:
            (tmp_path / "a-new-one.json").write_text(json.dumps({**run, "final": 71.0, "fingerprint": made_with}))

    monkeypatch.setattr(bench_convergence, "train", train)
    runs, _ = bench_convergence.study(tmp_path, {"small_vgg": bench_convergence.TRAINED["small_vgg"]}, [0, 1], 0.01)
    (missing,) = started
    assert (missing["model"], missing["recipe"], missing["seed"]) == asked[-1] and set(runs) == set(asked)
    assert bench_convergence.fingerprint("small_vgg", 0.02) != made_with


def test_runs_and_epochs_are_shown_while_they_go_on(capsys):
    said = ["[0]<stdout>:epoch 1, 9.0 s: bleu 2.1\n", "[1]<stdout>:epoch of another\n", "[0]<stdout>:> [1/2] lstm\n"]
    assert bench_convergence._show([*said, "[0]<stderr>:epoch 1\n"]) == f"{said[1]}[0]<stderr>:epoch 1\n"
    assert capsys.readouterr().out == "    epoch 1, 9.0 s: bleu 2.1\n  [1/2] lstm\n"


def test_ranks_that_fail_are_an_error_with_what_they_said(tmp_path):
    job = {
        "local": 1,
        "folder": str(tmp_path),
        "density": 0.1,
        "settings": {"small_vgg": {"rates": 1}},
        "fingerprint": "",
    }
    with pytest.raises(RuntimeError, match="unexpected keyword argument 'rates'"):
        bench_convergence.train(runs_of(0), job, ranks=2)
