"""The commands, as a user runs them."""

import io
import os
import re
import sys

import numpy as np
import pytest

import datacache
from datacache import counters, memory, slab
from datacache.__main__ import bytes_in, main
from datacache.progress import Bar
from tests.datacache.killing import orphan
from tests.datacache.test_cache import COUNT, images, options  # noqa: F401 - fixtures
from tests.datacache.varying import Images

DECODE = """
import io
import numpy as np
from PIL import Image

def decode(payload):
    return np.asarray(Image.open(io.BytesIO(payload)).resize((8, 8)))

def as_it_is(payload):
    return np.asarray(Image.open(io.BytesIO(payload)))
"""


@pytest.fixture
def run(images, tmp_path, capsys, monkeypatch):  # noqa: F811
    """Runs a command on the images; returns its status and output."""
    (tmp_path / "own_decoding.py").write_text(DECODE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", list(sys.path))

    def command(name, *more, source=images[0]):
        status = main([name, "--images", str(source), "--local-dir", str(tmp_path / "local"), *more])
        told = capsys.readouterr()
        return status, told.out, told.err

    command.source = images[0]
    return command


def test_plan_says_what_the_levels_take(run):
    status, out, err = run("plan")
    assert status == 0 and "listing 30" in err
    assert f"{COUNT} samples in {COUNT} files, " in out and "are free on" in out and "pass --decode" in out
    status, out, err = run("plan", "--decode", "own_decoding:decode")
    assert status == 0 and err == ""  # it has been listed before
    assert "uint8 [8, 8, 3], 192 bytes each" in out and f"{slab.needed(COUNT, 192) / 1000:.1f} KB" in out


def test_warm_fills_the_disk_and_stats_tell(run, images, options):  # noqa: F811
    status, out, err = run("warm")
    assert status == 0 and f"{COUNT} of {COUNT}" in err
    images[0].rename(images[0].with_name("gone"))
    with datacache.DataCache(datacache.ImageFolder(images[0]), **options) as cache:
        list(cache.batches(5, 0))
        list(cache.batches(5, 1))
    status, out, _ = run("stats")
    assert status == 0
    rows = {line[:28].strip(): line[28:] for line in out.splitlines()}
    assert rows["from source"].startswith(f"{COUNT} samples, 77.4 KB")
    assert rows["from disk"].startswith(f"{COUNT + 1} samples") or rows["from disk"].startswith(f"{COUNT} samples")
    assert int(rows["from memory"].split()[0]) >= COUNT
    assert rows["source on disk"].startswith(f"{COUNT} records")


def test_stats_tell_what_came_from_peers_and_went_to_them(run, options):  # noqa: F811
    run("plan")
    with datacache.DataCache(datacache.ImageFolder(run.source), **options) as cache:
        stats = cache._opened.store.stats
    tally = counters.Counters()
    for name, amount in {
        "samples.peers": 7,
        "bytes.peers": 7000,
        "stalls.peers": 2,
        "seconds.peers": 1.5,
        "served.samples": 3,
        "served.bytes": 3000,
        "failures.peers": 1,
    }.items():
        tally.add(name, amount)
    tally.save(stats)
    rows = {line[:28].strip(): line[28:] for line in run("stats")[1].splitlines()}
    assert rows["from peers"] == "7 samples, 7.0 KB" and rows["served to peers"] == "3 samples, 3.0 KB"
    assert rows["waited for peers"] == "2 times, 1.5 s in all" and rows["peers left alone"] == "1 times"


def test_warm_decodes_too(run):
    status, out, err = run("warm", "--decode", "own_decoding:decode")
    assert status == 0 and "decoding" in err and "fingerprint" in out
    assert "decoded on disk" in run("stats")[1]


@pytest.fixture
def sizes(tmp_path):
    """Images of many sizes."""
    return Images(tmp_path / "sizes")


def test_varying_shapes_are_planned_and_warmed(run, sizes):
    named = ("--decode", "own_decoding:as_it_is")
    status, _, err = run("warm", *named, source=sizes.path)
    assert status == 2 and "pass DataCache(shape=(None, None, 3))" in err
    named += ("--shape", "None,None,3")
    status, out, _ = run("plan", *named, source=sizes.path)
    mean = int(np.mean([sample.nbytes for sample in sizes.samples]))
    assert status == 0 and f"uint8 [None, None, 3], {mean / 1000:.1f} KB each on average over {COUNT} samples" in out
    assert re.search("memory +about 16.* MB, .* are free", out)
    assert run("warm", *named, source=sizes.path)[0] == 0
    assert re.search(f"decoded on disk +{COUNT} records", run("stats", source=sizes.path)[1])
    assert run("verify", "--records", source=sizes.path)[:2] == (0, "Everything is as listed.\n")


def test_clear_removes_memory_that_a_killed_run_left(run, sizes, monkeypatch):
    shared = sizes.options["memory_dir"]

    def run_on():
        cache = sizes.open()
        list(cache.batches(5, 0))
        return cache

    orphan(run_on)
    monkeypatch.setattr(memory, "directory", lambda: shared / f"datacache-{os.getuid()}")
    assert len(list(shared.glob("*/*.lmdb"))) == 1
    assert run("clear", source=sizes.path)[0] == 0
    assert list(shared.glob("*/*")) == []


@pytest.mark.parametrize(
    "text, size",
    [
        ("1100000", 1_100_000),
        ("1100000B", 1_100_000),
        ("40G", 40_000_000_000),
        ("40gb", 40_000_000_000),
        ("1.5T", 1_500_000_000_000),
        ("2 KiB", 2048),
        ("37.5Gi", 37.5 * 2**30),
        ("1p", 10**15),
        ("3M", 3_000_000),
        ("0", 0),
    ],
)
def test_a_size_is_read_as_numfmt_reads_it(text, size):
    assert bytes_in(text) == size


@pytest.mark.parametrize("text", ["-1", "40X", "G", "", "1.5", "1,5G", "40GiG"])
def test_what_is_no_size_is_refused(text, run, capsys):
    with pytest.raises(SystemExit):
        run("warm", f"--disk-bytes={text}")
    assert "argument --disk-bytes: Expected bytes, such as 40000000000, 40G or 37.5GiB" in capsys.readouterr().err


def test_classes_are_given_in_order_or_in_a_file(run, tmp_path):
    (tmp_path / "images" / "bee").mkdir()
    status, _, err = run("plan")
    assert status == 2 and "class folders without a file" in err and "'bee'" in err and "--classes" in err
    names = ["zebra", "bee", *sorted(path.name for path in run.source.iterdir() if path.name != "bee")]
    (tmp_path / "names").write_text("\n".join(names) + "\n")
    assert run("plan", "--classes", ", ".join(names))[0] == 0
    assert run("stats", "--classes", f"@{tmp_path / 'names'}")[0] == 0
    assert run("stats")[0] == 2


def test_classes_that_cannot_be_are_told(run, tmp_path, capsys):
    assert main(["plan", "--tfrecords", str(tmp_path), "--local-dir", str(tmp_path), "--classes", "a"]) == 2
    assert "Expected --classes with --images" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        run("plan", "--classes", f"@{tmp_path / 'absent'}")
    assert "absent cannot be read" in capsys.readouterr().err


@pytest.mark.parametrize("shape", ["3,,3", "None,x", ""])
def test_what_is_no_shape_is_refused(shape, run, capsys):
    with pytest.raises(SystemExit):
        run("plan", "--decode", "own_decoding:as_it_is", "--shape", shape)
    assert "argument --shape" in capsys.readouterr().err


def test_what_does_not_fit_is_told(run, tmp_path):
    big = tmp_path / "big" / "class"
    big.mkdir(parents=True)
    for number in range(3):
        (big / f"{number}.jpg").write_bytes(os.urandom(600_000))
    status, out, _ = run("warm", "--disk-bytes", "1100000", source=big.parent)
    assert status == 1 and "samples did not fit: increase --disk-bytes" in out


def test_verify_finds_changes_and_lists_anew(run, images):  # noqa: F811
    assert run("verify")[:2] == (0, "Everything is as listed.\n")
    images[1][3][0].write_bytes(b"other")
    images[1][4][0].unlink()
    status, out, _ = run("verify")
    assert status == 1 and f"{images[1][3][0]} has changed" in out and f"{images[1][4][0]} no longer exists" in out
    assert "2 problems" in out
    status, out, _ = run("verify", "--relist")
    assert status == 0 and f"Listed again: {COUNT - 1} samples" in out
    assert run("verify")[0] == 0


def test_verify_finds_damaged_records(run, images, tmp_path):  # noqa: F811
    run("warm")
    (data,) = (tmp_path / "local").rglob("source/data.mdb")
    whole = bytearray(data.read_bytes())
    whole[whole.find(images[1][8][1]) + 100] ^= 1
    data.write_bytes(whole)
    assert run("verify")[0] == 0
    status, out, _ = run("verify", "--records")
    assert status == 1 and "sample 8 is damaged (its checksum is wrong); it was removed" in out
    assert run("verify", "--records")[0] == 0
    assert "sample 8 was damaged in source" in run("stats")[1]
    run("warm")
    assert f"{COUNT} records" in run("stats")[1]


def test_clear_removes_what_nobody_uses(run, images, options, tmp_path):  # noqa: F811
    with datacache.DataCache(datacache.ImageFolder(images[0]), **options):
        status, out, _ = run("clear")
        assert status == 1 and "is in use and was kept" in out
    assert run("clear")[0] == 0
    assert list((tmp_path / "local").iterdir()) == []
    assert run("clear")[0] == 0


@pytest.mark.parametrize(
    "arguments, told",
    [
        (("plan", "--decode", "own_decoding"), "Expected --decode MODULE:FUNCTION, got own_decoding"),
        (("plan", "--decode", "own_decoding:none"), "cannot be found: .*none"),
        (("warm", "--decode", "absent_module:f"), "cannot be found: No module named 'absent_module'"),
    ],
)
def test_errors_are_told_in_a_line(arguments, told, run):
    status, _, err = run(*arguments)
    assert status == 2
    assert re.search(f"datacache: .*{told}", err)


def test_a_source_that_is_not_there_is_told(run, tmp_path):
    status, _, err = run("plan", source=tmp_path / "absent")
    assert status == 2 and "absent" in err and "Traceback" not in err


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_bar_is_drawn_on_a_terminal_and_a_line_elsewhere():
    terminal, log = Terminal(), io.StringIO()
    for stream in (terminal, log):
        bar = Bar("reading", stream)
        for done in range(1, 5):
            bar(done, 4)
        bar.close()
    assert "\r" in terminal.getvalue() and "[##############################] 4 of 4" in terminal.getvalue()
    assert log.getvalue().count("\n") == 1 and "4 of 4" in log.getvalue()
