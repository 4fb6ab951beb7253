"""Pairs of sentences: catalogues, cleaning, splitting, vocabulary and batches."""

import gettext
import pathlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples.text import batches, catalogues, corpus
from examples.text.batches import Encoded, Ragged, TrainingBatches
from examples.text.catalogues import Pair
from examples.text.vocabulary import BEGIN, END, PAD, Vocabulary
from tests.examples import messages

# ---- catalogues ----

MESSAGES = {
    "Open file": "Datei öffnen",
    "menu\4Open": "Öffnen",
    "%d file\0%d files": "%d Datei\0%d Dateien",
    "one form only": "nur eine Form",
}


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("charset", ["UTF-8", "ISO-8859-1"])
def test_a_catalogue_is_read_as_gettext_reads_it(tmp_path, charset, order):
    path = tmp_path / "a.mo"
    messages.write(path, MESSAGES, charset, order)
    pairs = catalogues.read(path)
    assert sorted(pairs) == [
        ("%d file", "%d Datei"),
        ("%d files", "%d Dateien"),
        ("Open", "Öffnen"),
        ("Open file", "Datei öffnen"),
        ("one form only", "nur eine Form"),
    ]
    with open(path, "rb") as file:
        theirs = gettext.GNUTranslations(file)
    assert theirs.gettext("Open file") == "Datei öffnen"
    assert theirs.pgettext("menu", "Open") == "Öffnen"
    assert [theirs.ngettext("%d file", "%d files", n) for n in (1, 2)] == ["%d Datei", "%d Dateien"]


def test_the_catalogues_of_this_machine_are_read_as_gettext_reads_them():
    paths = catalogues.of_system("de")
    if not paths:
        pytest.skip("this machine has no German message catalogues")
    smallest = min(paths, key=lambda path: (path.stat().st_size, path))
    with open(smallest, "rb") as file:
        theirs = gettext.GNUTranslations(file)
    told = {theirs.gettext(pair.source) for pair in catalogues.read(smallest)}
    assert told <= {side for pair in catalogues.read(smallest) for side in pair}


@pytest.mark.parametrize(
    "damage, told",
    [
        (lambda data: b"not a catalogue", "expected a message catalogue of GNU gettext"),
        (lambda data: b"", "expected a message catalogue of GNU gettext"),
        (lambda data: data[:40], "expected a whole message catalogue"),
        (lambda data: data[:-8], "a string lies beyond the end"),
        (lambda data: data.replace("ö".encode(), b"\xff\xfe"), "can't decode byte 0xff"),
        (lambda data: data.replace(b"UTF-8", b"no-ch"), "unknown encoding: no-ch"),
    ],
)
def test_a_damaged_catalogue_is_refused(tmp_path, damage, told):
    path = tmp_path / "a.mo"
    messages.write(path, MESSAGES)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ValueError, match=told):
        catalogues.read(path)


def test_what_cannot_be_read_is_told_and_passed_over(tmp_path):
    messages.write(tmp_path / "a.mo", MESSAGES)
    (tmp_path / "b.mo").write_bytes(b"nothing")
    found = catalogues.read_all([tmp_path / "a.mo", tmp_path / "b.mo", tmp_path / "c.mo"])
    assert (len(found.pairs), found.catalogues) == (5, 1)
    assert [line.partition(":")[0] for line in found.unread] == [str(tmp_path / name) for name in ("b.mo", "c.mo")]
    assert "b.mo: expected a message catalogue" in str(found)


def test_catalogues_are_found_in_systems_and_in_packages(tmp_path):
    for path in ("de/LC_MESSAGES/a.mo", "fr/LC_MESSAGES/a.mo", "package/locale/de/LC_MESSAGES/b.mo"):
        messages.write(tmp_path / path, MESSAGES)
    assert catalogues.of_system("de", [tmp_path, "/not/there"]) == [tmp_path / "de/LC_MESSAGES/a.mo"]
    within = [tmp_path / "package/locale/de/LC_MESSAGES/b.mo"]
    assert catalogues.of_python("de", [str(tmp_path / "package")]) == within


# ---- cleaning and splitting ----


@pytest.mark.parametrize(
    "source, target, kept",
    [
        ("could not open %s\n", "konnte  %s nicht\töffnen", ("could not open %s", "konnte %s nicht öffnen")),
        ("%s: %d", "%s: %d.", None),
        ("{name} <b>%(count)d</b> ${HOME}", "{name}: <b>%(count)d</b>", None),
        ("100 %", "100 v. H.", None),
        ("", "etwas", None),
        ("something", " \n", None),
        ("Pardhi", "Pardhi", None),
        ("usage", "Dieser Text ist um vieles länger als der andere", None),
        ("yes", "jawohl, so ist es", ("yes", "jawohl, so ist es")),
        ("u\u0308ber", "over", ("über", "over")),
    ],
)
def test_what_is_no_translation_is_left_out(source, target, kept):
    assert corpus.clean([Pair(source, target)]) == ([] if kept is None else [kept])


def test_a_source_counts_once_with_its_most_frequent_translation():
    told = [("file", "Datei"), ("file", "Ordner"), ("b", "y"), ("b", "x"), ("file", "Datei"), ("a", "z")]
    pairs = [Pair(*each) for each in told]
    expected = [("a", "z"), ("b", "x"), ("file", "Datei")]
    assert corpus.deduplicate(pairs) == corpus.deduplicate(reversed(pairs)) == expected


def test_the_division_depends_on_the_words_of_a_source_alone():
    pairs = [Pair(*each) for each in messages.sentences().items()]
    train, validation, test = corpus.divide(pairs, 0.1)
    assert sorted(train + validation + test) == sorted(pairs)
    for part in (validation, test):
        assert 0.08 * len(pairs) < len(part) < 0.12 * len(pairs)
    fewer = corpus.divide(pairs[::3], 0.1)
    for part, of_fewer in zip((train, validation, test), fewer, strict=True):
        assert set(of_fewer) == set(part) & set(pairs[::3])
    for part in (train, validation, test):
        likes = [Pair(f"{pair.source.upper()}: %s, 7!", pair.target) for pair in part]
        assert sorted(map(len, corpus.divide(likes, 0.1))) == [0, 0, len(part)]


def test_a_share_that_leaves_nothing_to_train_on_is_refused():
    with pytest.raises(ValueError, match="between 0 and 0.5 to hold out, got 0.5"):
        corpus.divide([], 0.5)


def test_a_corpus_of_catalogues(tmp_path):
    found = corpus.of_catalogues(messages.write_sentences(tmp_path))
    assert len(found.train) + len(found.validation) + len(found.test) == 3_456
    assert found.origin == "3,456 English-German pairs out of 3,456 messages of 2 catalogues"
    assert corpus.digest(found) == corpus.digest(corpus.of_catalogues(tmp_path))
    fewer = corpus.of_catalogues(tmp_path, most_words=6, fewest=1_000)
    assert 0 < len(fewer.train) < len(found.train) and corpus.digest(fewer) != corpus.digest(found)
    assert max(len(pair.source.split()) for pair in fewer.train) == 6
    with pytest.raises(RuntimeError, match="at least 5,000 pairs .* found 3,456 English-German .* or pass a corpus"):
        corpus.of_catalogues(tmp_path, fewest=5_000)


def write_lines(folder: pathlib.Path, **texts: list[str]) -> list[pathlib.Path]:
    for name, lines in texts.items():
        (folder / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf8")
    return [folder / name for name in texts]


def test_a_corpus_of_files(tmp_path):
    paths = write_lines(
        tmp_path,
        a=["one\u2028dog", "two cats", "two cats", "%s", "held out"],
        b=["ein Hund", "zwei Katzen", "zwei Katzen", "%s", "zurückgehalten"],
        c=["held out", "%d"],
        d=["zurückgehalten", "%d"],
    )
    found = corpus.of_files((paths[0], paths[1]), (paths[2], paths[3]))
    assert found.train == [("one dog", "ein Hund"), ("two cats", "zwei Katzen")]
    assert found.validation == found.test == [("held out", "zurückgehalten"), ("%d", "%d")]
    with pytest.raises(ValueError, match="as many lines in .*a as in .*d, got 5 and 2: line n of the one"):
        corpus.of_files((paths[0], paths[3]), (paths[2], paths[3]))


# ---- vocabulary ----


@pytest.fixture(scope="module")
def vocabulary():
    return Vocabulary.learn((side for pair in messages.sentences().items() for side in pair), 400)


def test_a_vocabulary_has_the_size_that_was_asked_for(vocabulary):
    assert vocabulary.size == 400
    assert (
        Vocabulary(vocabulary.model).encode(["the red lamp"])[0].tolist()
        == vocabulary.encode(["the red lamp"])[0].tolist()
    )
    again = Vocabulary.learn((side for pair in messages.sentences().items() for side in pair), 400)
    assert again.model == vocabulary.model


def test_texts_come_back_as_they_were(vocabulary):
    texts = ["the man can see the red lamp", "niemand verkauft die große Tür", "日本 %s»öffnen«", "x"]
    rows = [[BEGIN, *row.tolist(), END, PAD, 77] for row in vocabulary.encode(texts)]
    assert vocabulary.decode(rows) == texts
    assert vocabulary.decode([[END, 5], [PAD], []]) == ["", "", ""]


@given(st.text(st.characters(exclude_categories=["C", "Z"], exclude_characters="\u2581"), max_size=30))
def test_any_word_comes_back(vocabulary, text):
    text = corpus.tidy(text)
    assert vocabulary.decode(vocabulary.encode([text])) == [text]


def test_a_vocabulary_that_texts_do_not_yield_is_refused():
    with pytest.raises(ValueError, match="texts that yield a vocabulary of 5000 pieces"):
        Vocabulary.learn(["the red lamp", "die rote Lampe"], 5_000)


# ---- batches ----


def encoded(lengths: list[tuple[int, int]]) -> Encoded:
    """Pairs of these lengths; the pieces of pair n are all 10 + n."""
    sources, targets = zip(*lengths, strict=True)
    rows = [
        Ragged([np.full(length, 10 + number, np.int32) for number, length in enumerate(side)])
        for side in (sources, targets)
    ]
    return Encoded(*rows)


def some_pairs(count: int = 103) -> Encoded:
    random = np.random.default_rng(0)
    return encoded([(int(a), int(b)) for a, b in random.integers(1, 30, (count, 2))])


def test_a_batch_is_padded_and_shifted():
    batch = encoded([(2, 1), (0, 3)]).batch([1, 0], 4)
    assert batch.source.tolist() == [[END, PAD, PAD, PAD], [10, 10, END, PAD]]
    assert batch.target.tolist() == [[BEGIN, 11, 11, 11], [BEGIN, 10, PAD, PAD]]
    assert batch.labels.tolist() == [[11, 11, 11, END], [10, END, PAD, PAD]]
    assert {array.dtype for array in batch} == {np.dtype(np.int32)}


def test_boundaries_grow_to_the_longest():
    assert batches.boundaries(32) == [8, 10, 13, 17, 22, 28, 32]
    assert batches.boundaries(8) == [8]
    assert batches.boundaries(4, shortest=1, growth=1.01) == [1, 2, 3, 4]
    for wrong in ({"longest": 7}, {"longest": 9, "growth": 1.0}, {"longest": 9, "shortest": 0}):
        with pytest.raises(ValueError, match="Expected lengths that grow"):
            batches.boundaries(**wrong)


@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
def test_all_ranks_get_the_same_shapes_and_every_pair_is_seen(ranks):
    pairs, lengths = some_pairs(), [8, 16, 24]
    everyones = [TrainingBatches(pairs, lengths, 64, rank, ranks, seed=5) for rank in range(ranks)]
    for epoch in (0, 1):
        epochs = [list(own.epoch(epoch)) for own in everyones]
        assert {len(own) for own in epochs} == {everyones[0].steps}
        for step in zip(*epochs, strict=True):
            shapes = {array.shape for batch in step for array in batch}
            assert len(shapes) == 1 and shapes <= {(8, 8), (4, 16), (2, 24)}
        seen = {int(row[0]) - 10 for own in epochs for batch in own for row in batch.labels}
        assert seen == set(np.flatnonzero(pairs.lengths <= 24).tolist())
    assert everyones[0].left_out == np.count_nonzero(pairs.lengths > 24) > 0


def test_the_order_depends_on_seed_and_epoch_alone():
    def labels(seed, epoch, rank=0, ranks=1, tokens=64):
        own = TrainingBatches(some_pairs(), [8, 16, 32], tokens, rank, ranks, seed)
        return [batch.labels for batch in own.epoch(epoch)]

    def equal(one, other):
        return len(one) == len(other) and all(map(np.array_equal, one, other))

    assert equal(labels(3, 4), labels(3, 4))
    assert not equal(labels(3, 4), labels(3, 5)) and not equal(labels(3, 4), labels(4, 4))
    halves = [labels(3, 4, rank, 2, tokens=32) for rank in (0, 1)]
    assert equal(labels(3, 4), [np.concatenate(step) for step in zip(*halves, strict=True)])


def test_a_bucket_with_fewer_pairs_than_a_batch_has_rows_is_filled_up():
    own = TrainingBatches(encoded([(3, 3), (4, 4)]), [8], 80, 1, 2, seed=0)
    (batch,) = own.epoch(0)
    assert batch.source.shape == (10, 8) and sorted(set(batch.labels[:, 0].tolist())) == [10, 11]


def test_batches_of_nothing_are_refused():
    with pytest.raises(ValueError, match="at most 8 pieces, got 1 pairs of which none"):
        TrainingBatches(encoded([(9, 2)]), [8], 64, 0, 1, 0)
    with pytest.raises(ValueError, match="at least 1 token and a rank of 2, got 8 and 2"):
        TrainingBatches(encoded([(1, 1)]), [8], 8, 2, 2, 0)


@pytest.mark.parametrize("ranks", [1, 3, 120])
def test_each_pair_is_evaluated_on_one_rank(ranks):
    pairs = some_pairs()
    shares = [list(batches.share(pairs, 100, rank, ranks)) for rank in range(ranks)]
    rows = [row for own in shares for numbers, _ in own for row in numbers]
    assert sorted(rows) == list(range(len(pairs)))
    for numbers, batch in (each for own in shares for each in own):
        assert batch.source.size <= 100 and batch.source.shape == (len(numbers), pairs.lengths[numbers].max())
        assert [int(row[0]) - 10 for row in batch.labels] == numbers
