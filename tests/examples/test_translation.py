"""The translation script: its options, and a run of two ranks that is stopped and resumed."""

import json
import re
import shutil

import h5py
import numpy as np
import pytest

from examples import translation
from examples.text.corpus import Corpus
from examples.text.vocabulary import Vocabulary
from examples.training import rates
from tests.examples import messages
from tests.parallel import launch

# ---- options ----


def test_presets_give_defaults_and_words_change_them():
    usual, base, reduced = (translation.parse(words) for words in ([], ["--base"], ["--reduced", "--epochs", "3"]))
    assert (usual.vocabulary, base.vocabulary, base.layers) == (8_000, 37_000, 6)
    assert reduced.epochs == 3 and reduced.most_words == translation.PRESETS["reduced"]["most_words"]
    assert {each.label_smoothing for each in (usual, base, reduced)} == {0.1}
    with pytest.raises(SystemExit):
        translation.parse(["--base", "--reduced"])


def test_a_short_training_has_a_shorter_warm_up():
    options = translation.parse(["--reduced", "--epochs", "1"])
    assert rates.make(options, [rates.Leg(options.epochs, 10)]) is not None
    assert options.warmup_epochs == 0.5
    assert translation.parse(["--reduced", "--warmup-epochs", "0.25", "--epochs", "1"]).warmup_epochs == 0.25


def test_the_schedule_is_that_of_the_paper():
    options = translation.parse(["--base", "--epochs", "40", "--warmup-epochs", "4"])
    schedule = rates.make(options, [rates.Leg(40, 1_000)])
    for step in (1, 100, 3_999, 4_000, 4_001, 16_000, 39_999):
        paper = 512**-0.5 * min(step**-0.5, step * 4_000**-1.5)  # Eq. 3
        told = float(schedule(step - 1 if step <= 4_000 else step))
        np.testing.assert_allclose(told, paper * 7e-4 / (512**-0.5 * 4_000**-0.5), rtol=1e-4)


@pytest.mark.thorough
def test_the_base_preset_is_the_paper_s_base_model():
    options = translation.parse(["--base"])
    vocabulary = type("", (), {"size": options.vocabulary})
    model = translation.make_model(options, vocabulary)
    assert sum(int(np.prod(weight.shape)) for weight in model.trainable_weights) == 63_082_496


@pytest.mark.parametrize("words", [["--train-source", "a"], ["--test-source", "a", "--test-target", "b"]])
def test_files_that_lack_their_others_are_refused(words):
    with pytest.raises(ValueError, match="--valid-source and --valid-target together"):
        translation.prepare(translation.parse(words))


def test_the_vocabulary_of_a_run_stays_with_it(tmp_path):
    words = ["--checkpoint-dir", str(tmp_path / "run"), "--vocabulary", "400"]
    words += ["--catalogues", str(messages.write_sentences(tmp_path))]
    task = translation.prepare(translation.parse(words))
    assert isinstance(task.corpus, Corpus) and len(task.train) == len(task.corpus.train)
    kept = tmp_path / "run" / "vocabulary.model"
    other = Vocabulary.learn(["another corpus, of few words", "ein anderer, mit wenigen"], 300)
    kept.write_bytes(other.model)
    with pytest.raises(ValueError, match="of 400 pieces, .* has 300: move it away"):
        translation.prepare(translation.parse(words))
    words[3] = "300"
    assert translation.prepare(translation.parse(words)).vocabulary.model == other.model


# ---- a run ----

RUN = ["--recipe", "hitopk", "--density", "0.1", "--width", "0.125", "--layers", "1", "--vocabulary", "400"]
RUN += ["--longest", "24", "--batch-size", "1024", "--learning-rate", "0.01", "--warmup-epochs", "1", "--beams", "1"]
RUN += ["--further", "8", "--epochs", "3", "--target", "bleu=20"]
SAME = ("epoch", "loss", "top1", "top5", "bleu", "train_loss", "learning_rate")


def train(tmp_path, *words):
    """The output, the log, and the weights of the last checkpoint."""
    run = [*RUN, "--catalogues", str(tmp_path), "--checkpoint-dir", str(tmp_path / "run"), *words]
    ended = launch.horovodrun(2, ["-m", "examples.translation", *run], limit=600)
    assert ended.status == 0, ended.output
    lines = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    weights = {}
    with h5py.File(tmp_path / "run" / "epoch-0002" / "model.weights.h5") as file:
        file.visititems(lambda name, item: weights.update({name: item[()]}) if isinstance(item, h5py.Dataset) else None)
    return ended.output, lines, weights


@pytest.mark.thorough
def test_two_ranks_train_and_go_on_from_a_checkpoint_to_the_same_bits(tmp_path):
    messages.write_sentences(tmp_path)
    output, lines, weights = train(tmp_path, "--tensorboard", str(tmp_path / "board"))
    assert [line["epoch"] for line in lines] == [0, 1, 2]
    assert lines[-1]["bleu"] > 20 > lines[0]["bleu"] and 0.5 < lines[-1]["top1"] < lines[-1]["top5"] <= 1
    assert "bleu of 20 reached after" in output
    assert list((tmp_path / "board").rglob("events.*"))
    shutil.rmtree(tmp_path / "run" / "epoch-0002")  # as if the run had ended earlier
    again, same_lines, same_weights = train(tmp_path, "--resume")
    assert "epoch 3," in again and "epoch 2," not in again
    for line, same in zip(lines, same_lines, strict=True):
        assert [line[name] for name in SAME] == [same[name] for name in SAME]
    assert weights.keys() == same_weights.keys() and len(weights) > 50
    assert all(np.array_equal(weights[name], same_weights[name]) for name in weights)
    told = [re.search(r"test, 1 beams: .*", each)[0] for each in (output, again)]
    assert told[0] == told[1] and "version:" in told[0]
