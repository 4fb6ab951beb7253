"""Every kind of data through the whole cache: to the bit from every level, by every way to read, after a restart."""

import concurrent.futures
import functools
import re

import numpy as np
import pytest
import tensorflow as tf

import datacache
import datacache.__main__
from datacache import nests
from datacache.order import permutation
from examples import photographs
from tests.datacache import members, node
from tests.datacache.kinds import COUNT, KINDS, payload
from tests.datacache.test_nests import assert_same

pytestmark = pytest.mark.filterwarnings("ignore:A dataset of one epoch is read a second time")
LEVELS = {
    "all": {},
    "no memory": {"memory_bytes": 0},
    "nothing": {"memory_bytes": 0, "disk_bytes": 0},
    "decoded too": {"keep_decoded": True},
}


def open_cache(path, kind, **levels):
    return datacache.DataCache(
        datacache.Indexed(payload, COUNT, "lines"),
        kind.decode,
        path / "local",
        shape=kind.shape,
        **{"memory_bytes": 4 << 20, "memory_dir": path / "shm", "world": datacache.World(), **levels},
    )


def flat(element):
    """The leaves of an element."""
    return list(nests.arrays(nests.described(element), element))


@pytest.mark.parametrize("levels", LEVELS.values(), ids=LEVELS)
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_each_kind_comes_back_to_the_bit(kind, levels, tmp_path):
    wanted = [kind.decode(payload(index)) for index in range(COUNT)]
    for _ in range(2):  # the second one begins with what is on disk
        with open_cache(tmp_path, kind, **levels) as cache:
            assert cache.layout.varies == kind.varies
            for epoch in range(2):
                order = permutation(COUNT, 0, epoch)
                made = [element for batch in cache.batches(5, epoch) for element in rows_of(cache, batch)]
                assert len(made) == COUNT
                for element, index in zip(made, order, strict=True):
                    assert_same(element, tuple(flat(wanted[index])))
            for element, index in zip(rows_of(cache, cache.take([3, 1, 3])), [3, 1, 3], strict=True):
                assert_same(element, tuple(flat(wanted[index])))
            assert_same(tuple(flat(cache.fetch(7))), tuple(flat(wanted[7])))


def rows_of(cache, batch):
    """The leaves of each element of a batch in NumPy."""
    columns = []
    for leaf, column in zip(cache.elements.leaves, leaves_of(batch), strict=True):
        assert isinstance(column, list) == leaf.varies
        columns.append(list(column))
    texts = [leaf.is_text for leaf in cache.elements.leaves]
    rows = zip(*columns, strict=True)
    return [
        tuple(np.asarray(each, object if text else None) for each, text in zip(row, texts, strict=True)) for row in rows
    ]


def leaves_of(batch):
    """The leaves of a batch, some of which are lists of arrays."""
    if isinstance(batch, dict):
        return [leaf for part in batch.values() for leaf in leaves_of(part)]
    return [leaf for part in batch for leaf in leaves_of(part)] if isinstance(batch, tuple) else [batch]


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_each_kind_is_a_dataset(kind, tmp_path):
    wanted = [kind.decode(payload(index)) for index in range(COUNT)]
    with open_cache(tmp_path, kind) as cache:
        for epoch in range(2):  # from the source, and from memory
            order = permutation(COUNT, 0, epoch)
            made = cache.dataset(5, epoch)
            elements = [row_of(batch, row) for batch in made for row in range(tf.nest.flatten(batch)[0].shape[0])]
            assert len(elements) == COUNT and len(made) == 5
            for element, index in zip(elements, order, strict=True):
                compare(element, wanted[index])
        rows = tf.data.Dataset.from_tensor_slices([[2, 0], [2, 2]])
        for batch, indices in zip(cache.select(rows), [[2, 0], [2, 2]], strict=True):
            for row, index in enumerate(indices):
                compare(row_of(batch, row), wanted[index])


def row_of(batch, row):
    """An element of a batch of tensors."""
    return tf.nest.map_structure(lambda leaf: leaf[row], batch)


def compare(element, wanted):
    """That tensors are what was decoded; strings are bytes in TensorFlow."""
    if isinstance(wanted, dict | tuple):
        assert type(element) is type(wanted) and len(element) == len(wanted)
        for key in wanted if isinstance(wanted, dict) else range(len(wanted)):
            compare(element[key], wanted[key])
        return
    wanted = np.asarray(wanted, object if isinstance(wanted, str | bytes | list) else None)
    made = element.to_tensor().numpy() if isinstance(element, tf.RaggedTensor) else element.numpy()
    if wanted.dtype.kind in "OU":
        texts = [text.encode() if isinstance(text, str) else text for text in wanted.ravel()]
        assert np.asarray(made, object).ravel().tolist() == texts
    else:
        assert made.dtype == wanted.dtype and made.tobytes() == wanted.tobytes()


def test_a_function_gets_the_parts_of_an_element(tmp_path):
    wanted = [KINDS["boxes"].decode(payload(index)) for index in range(COUNT)]

    def counted(image, targets):
        return image["image"], tf.shape(targets["boxes"])[0]

    with open_cache(tmp_path, KINDS["boxes"]) as cache:
        for images, counts in cache.dataset(COUNT, 0, map_func=counted):
            for image, count, index in zip(images, counts, permutation(COUNT, 0, 0), strict=True):
                np.testing.assert_array_equal(image, wanted[index][0]["image"])
                assert count == len(wanted[index][1]["boxes"])
    with open_cache(tmp_path, KINDS["texts"]) as cache:
        (lengths,) = cache.dataset(COUNT, 0, map_func=lambda line: tf.strings.length(line["text"]))
        texts = [KINDS["texts"].decode(payload(index))["text"].encode() for index in permutation(COUNT, 0, 0)]
        assert lengths.numpy().tolist() == list(map(len, texts))


def test_sources_with_labels_add_them_to_a_dict(tmp_path):
    source = datacache.Indexed(payload, COUNT, "lines", labels=range(COUNT))
    levels = {"memory_dir": tmp_path / "shm", "world": datacache.World()}
    with datacache.DataCache(source, lambda data: {"size": len(data)}, tmp_path / "local", **levels) as cache:
        ((made, labels),) = cache.batches(COUNT, 0)
        assert made["size"].tolist() == [len(payload(index)) for index in permutation(COUNT, 0, 0)]
        assert labels.tolist() == permutation(COUNT, 0, 0).tolist()
        assert cache.dataset(COUNT, 0).element_spec[1] == tf.TensorSpec([COUNT], tf.int64)


def test_peers_serve_each_other_nests_of_one_shape(tmp_path):
    peers, kind = node.free_addresses(2), KINDS["masks"]

    def reading(rank):
        world = datacache.World(rank, 2, rank, 2, tuple(peers), peers[rank], b"secret of the job")
        cache = open_cache(tmp_path / str(rank), kind, world=world)
        order = permutation(COUNT, 0, 0)
        for step, batch in enumerate(cache.batches(4, 0)):
            indices = order[cache.schedule(4, 0).span(step, rank)[0] : cache.schedule(4, 0).span(step, rank)[1]]
            for element, index in zip(rows_of(cache, batch), indices, strict=True):
                assert_same(element, tuple(flat(kind.decode(payload(index)))))
        return cache

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        caches = list(pool.map(reading, range(2)))
    assert sum(cache.counters.numbers().get("samples.peers", 0) for cache in caches) > 0
    for cache in caches:
        cache.close()


def test_peers_cannot_serve_strings(tmp_path):
    world = datacache.World(0, 2, 0, 2, ("127.0.0.1:1", "127.0.0.1:2"), "127.0.0.1:1", b"secret of the job")
    with pytest.raises(ValueError, match="Peers serve each other samples of one shape only, got {'text': str, "):
        open_cache(tmp_path, KINDS["texts"], world=world)


def test_commands_tell_of_nests(tmp_path, capsys, monkeypatch):
    photographs.write_folder(tmp_path / "images", 6, width=60, height=45, photographs=3)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "kept_with_name.py").write_text("def decode(data):\n    return {'size': len(data), 'head': data[:3]}\n")
    command = ["--images", str(tmp_path / "images"), "--local-dir", str(tmp_path / "local")]
    assert datacache.__main__.main(["plan", *command, "--decode", "kept_with_name:decode"]) == 0
    assert "{'size': int64, 'head': bytes}, 32 bytes each on average over 6 samples" in capsys.readouterr().out


def test_a_function_with_a_key_finds_labels_elsewhere(tmp_path):
    source, contents = members.files(tmp_path / "data")
    names = sorted(str(file.relative_to(tmp_path / "data")) for file in (tmp_path / "data").rglob("*.jpg"))
    scores = {name: number / 2 for number, name in enumerate(names)}

    def decode(data, key):
        return len(data), scores[key]

    with datacache.DataCache(source, decode, tmp_path / "local", memory_dir=tmp_path / "shm") as cache:
        for epoch in range(2):
            ((sizes, labels),) = cache.batches(members.COUNT, epoch)
            order = permutation(members.COUNT, 0, epoch)
            assert sizes.tolist() == [len(contents[index]) for index in order]
            assert labels.tolist() == [index / 2 for index in order]
    for function in (lambda data, key=3: np.full(1, key), functools.partial(lambda data, key: np.full(1, key), key=3)):
        indexed = datacache.Indexed(payload, COUNT, "lines")
        with datacache.DataCache(indexed, function, tmp_path / "local", memory_dir=tmp_path / "shm") as cache:
            assert cache.fetch(5).tolist() == [3]
    with datacache.DataCache(indexed, lambda data, key: key, tmp_path / "local", memory_dir=tmp_path / "shm") as cache:
        assert cache.fetch(5) == 5


def test_a_sample_unlike_the_others_is_named_with_what_to_do(tmp_path):
    def decode(data):
        return {"words": np.zeros(len(data))}

    with pytest.raises(datacache.DecodeError) as raised:
        with open_cache(tmp_path, KINDS["texts"]._replace(decode=decode, shape=None)) as cache:
            list(cache.batches(5, 0))
    assert re.match(
        r"sample \d+ is not decoded to \{'words': float64 \[\d+\]\}, as other samples are", str(raised.value)
    )
    assert "bring all to one shape, or pass DataCache(shape=) with (None,) there" in str(raised.value)


def test_a_model_is_fitted_on_several_inputs_and_weights(tmp_path):
    def decode(data):
        x, y, weight = KINDS["vectors"].decode(data)
        return {"a": x[:3], "b": x[3:]}, y.astype("f4"), np.float32(weight)

    inputs = {"a": tf.keras.Input((3,), name="a"), "b": tf.keras.Input((4,), name="b")}
    made = tf.keras.layers.Dense(2)(tf.keras.layers.Concatenate()([inputs["a"], inputs["b"]]))
    model = tf.keras.Model(inputs, made)
    model.compile("sgd", "mse")
    with open_cache(tmp_path, KINDS["vectors"]._replace(decode=decode)) as cache:
        history = model.fit(cache.dataset(5, 0), verbose=0)
    assert np.isfinite(history.history["loss"][0])
