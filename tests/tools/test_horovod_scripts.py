"""tools/horovod_scripts: how it changes a script, reads a source, and reports what ran; on our own texts."""

from __future__ import annotations

import json
import tarfile

import pytest

from tools.horovod_scripts import changes, reasons, report, running
from tools.horovod_scripts.changes import rewrite
from tools.horovod_scripts.running import Outcome
from tools.horovod_scripts.scripts import SCRIPTS, TESTS
from tools.horovod_scripts.source import Source


@pytest.mark.parametrize("name", ["horovod.tensorflow.keras", "horovod.tensorflow", "horovod.keras"])
def test_the_import_line_is_changed_and_no_other_import(name):
    text, applied = rewrite(f"import horovod\nif True:\n    import {name} as hvd\nfrom {name} import util\n")
    assert text == f"import horovod\nif True:\n    import hvd_sparse as hvd\nfrom {name} import util\n"
    assert [(change.was, change.places) for change in applied] == [(f"import {name} as hvd", 1)]


DROPPED = [
    ("config = tf.ConfigProto()\nconfig.gpu_options.allow_growth = True\nx = 1\n", "x = 1\n"),
    ("K.set_session(tf.Session(config=config))\nx = 1\n", "x = 1\n"),
    ("opt = SGD(lr=0.1, momentum=0.9)", "opt = SGD(learning_rate=0.1, momentum=0.9)"),
    ("rate = model.optimizer.lr.numpy()", "rate = model.optimizer.learning_rate.numpy()"),
    ("send(opt.variables(), 0)", "send(opt.variables, 0)"),
    ("from keras.preprocessing.image import X", "from tensorflow.keras.preprocessing.image import X"),
    ("model.fit_generator(data,\n    workers=4,\n    verbose=1)", "model.fit(data,\n    verbose=1)"),
    ("model.evaluate_generator(data, len(data), workers=4)", "model.evaluate(data, steps=len(data))"),
    ("ModelCheckpoint('./checkpoint-{epoch}.h5')", "ModelCheckpoint('./checkpoint-{epoch}.keras')"),
    ("compile(opt, sample_weight_mode='temporal')", "compile(opt)"),
]


@pytest.mark.parametrize("was, becomes", DROPPED)
def test_what_is_dropped_is_replaced_and_told(was, becomes):
    text, applied = rewrite(was)
    assert text == becomes
    assert applied and all(change.reason for change in applied)


@pytest.mark.parametrize(
    "text",
    [
        "model.variables",
        "color=1",
        "opt.learning_rate = 1",
        "self.slr = 2",
        "config = super().get_config()",
        "tf.keras.losses.MSE",
    ],
)
def test_the_rest_stays(text):
    assert rewrite(text) == (text, [])


def test_a_script_has_changes_of_its_own():
    text, applied = rewrite("epochs=24\n", [changes.shorter(r"epochs=24", "epochs=4")])
    assert text == "epochs=4\n" and applied[0].reason.startswith("Shorter")


BUILT = [
    (
        "tensorflow2_mnist_elastic",
        "    for a, (b, c) in enumerate(dataset.take(1)):\n        training_step(images, labels, allreduce=False)\n",
        "    mnist_model.build((None, 28, 28, 1))\n    opt.build(mnist_model.trainable_variables)\n",
    ),
    (
        "tensorflow2_keras_mnist_elastic",
        "model.fit(dataset, steps_per_epoch=1, x=1)\nf()\n    # Re-initialize, x\n    state.model.fit(dataset)\n",
        "model.build((None, 28, 28, 1))\nopt.build(model.trainable_variables)\nf()\n",
    ),
]


@pytest.mark.parametrize("name, was, becomes", BUILT)
def test_elastic_examples_build_their_model_without_a_step(name, was, becomes):
    script = next(each for each in SCRIPTS if each.path.endswith(f"/{name}.py"))
    assert rewrite(was, script.changes)[0] == becomes


def test_names_are_paths_in_horovods_repository():
    paths = [each.path for each in (*SCRIPTS, *TESTS)]
    assert len(paths) == len(set(paths)) and all(path.startswith(("examples/", "test/")) for path in paths)


def checkout(folder, files):
    for name, text in {"horovod/__init__.py": "__version__ = '0.0.1'\n", **files}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def test_a_source_is_a_checkout_or_an_archive_of_one(tmp_path):
    folder = checkout(tmp_path / "horovod-0.0.1", {"examples/a.py": "x = 1\n"})
    with tarfile.open(tmp_path / "horovod.tar.gz", "w:gz") as archive:
        archive.add(folder, "horovod-0.0.1")
    for number, path in enumerate((folder, tmp_path / "horovod.tar.gz")):
        source = Source(path, tmp_path / f"unpacked{number}")
        assert source.version == "0.0.1" and source.has("examples/a.py") and not source.has("examples/b.py")
        assert source.read("examples/a.py") == "x = 1\n"


def test_what_is_no_source_is_refused_in_words(tmp_path):
    with pytest.raises(FileNotFoundError, match="pass a checkout of Horovod"):
        Source(tmp_path / "nothing", tmp_path)
    with pytest.raises(ValueError, match="not a checkout or archive of Horovod"):
        Source(tmp_path, tmp_path)


def test_a_script_that_a_source_lacks_is_absent(tmp_path):
    source = Source(checkout(tmp_path / "h", {}), tmp_path)
    assert running.run_script(SCRIPTS[0], source, 2) == (Outcome("absent"), [])
    assert running.run_tests(TESTS[0], source, 2) == ({}, [])


def test_tests_pass_where_they_pass_on_all_ranks(tmp_path):
    events = {
        "rank0": [("a", "passed"), ("b", "passed"), ("c", "skipped"), ("d", "begun"), ("e", "passed"), ("f", "failed")],
        "rank1": [("a", "passed"), ("b", "failed"), ("c", "skipped"), ("d", "passed"), ("f", "passed")],
    }
    for rank, lines in events.items():
        written = [{"test": "", "event": "collected", "text": list("abcdef")}]
        for test, event in lines:
            written.append({"test": test, "event": "begun", "text": ""})
            written += [{"test": test, "event": event, "text": f"{test} on {rank}"}] if event != "begun" else []
        (tmp_path / f"{rank}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in written))
    collected, found = running.read_records(tmp_path, 2)
    assert collected == set("abcdef")
    assert {name: outcome.outcome for name, outcome in found.items()} == {
        "a": "passed",
        "b": "failed",
        "c": "skipped",
        "d": "failed",
        "e": "failed",
        "f": "failed",
    }
    assert found["b"].text == "b on rank1" and "waited" in found["d"].text


def test_what_a_rank_raised_is_found():
    output = "[0]<stdout>: fine\n[1]<stderr>:Traceback\n[1]<stderr>:  x()\n[1]<stderr>:a.b.MyError: no\nRuntimeError: z"
    assert running.raised(output) == "a.b.MyError: no"
    assert running.raised("killed") == "killed"


FAILED = {"outcome": "failed", "text": "TypeError: u"}


def test_the_report_names_what_has_no_reason(monkeypatch):
    change = {"reason": "why", "was": "old | x", "became": "new", "places": 2}
    results = {
        "version": "0.0.1",
        "with": "us",
        "date": "2020-01-01",
        "scripts": {
            "examples/a.py": {
                "changes": [change],
                "ranks": {
                    "2": {"examples/a.py": {"outcome": "passed", "text": ""}},
                    "4": {"examples/a.py": {"outcome": "failed", "text": "Error: boom"}},
                },
            }
        },
        "tests": {"test/b.py": {"changes": [], "ranks": {"2": {"b::t": FAILED}}}},
    }
    monkeypatch.setattr(reasons, "REASONS", (reasons.Reason("b::*", "TypeError", "It cannot."),))
    assert report.unexplained(results) == ["examples/a.py"]
    text = report.write(results, "command")
    assert "| `examples/a.py` | passed | failed | 2 |" in text
    assert f"{report.UNKNOWN} It said: `Error: boom`\n  `examples/a.py` (4 ranks)" in text
    assert "- It cannot.\n  `b::t` (2 ranks)" in text
    assert "| `test/b.py` | 1 failed |" in text
    assert "| `old \\| x` | `new` | why | 2 | a.py |" in text


def test_every_reason_is_a_sentence():
    assert all(reason.sentence.endswith(".") and reason.said for reason in reasons.REASONS)
