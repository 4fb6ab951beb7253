"""Real JPEG files without a download: crops of the photographs that scikit-image and scikit-learn ship.

Each photograph has a folder, so that the label is the photograph; crops differ in position and size. Training crops
come from the left halves and held-out crops from the right ones, so that they have no pixel in common.
"""

from __future__ import annotations

import importlib.util
import io
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from examples import extras

Image = extras.need("PIL.Image")

_SHIPPED = {
    "skimage": "data",
    "sklearn": "datasets/images",
}
_NAMES = {
    "skimage": (
        "astronaut.png",
        "chelsea.png",
        "coffee.png",
        "hubble_deep_field.jpg",
        "ihc.png",
        "retina.jpg",
        "rocket.jpg",
    ),
    "sklearn": ("china.jpg", "flower.jpg"),
}
_FURTHER = (
    "brick.png",
    "camera.png",
    "cell.png",
    "clock_motion.png",
    "coins.png",
    "grass.png",
    "gravel.png",
    "moon.png",
    "motorcycle_left.png",
    "page.png",
    "text.png",
)
_HALVES = {"left": (0.0, 0.5), "right": (0.5, 1.0)}


def load(names: int | None = None, further: bool = False) -> dict[str, Image.Image]:
    """Loads the first photographs, in colour, by name; all 9 by default.

    Args:
        names: number of photographs.
        further: whether to add scikit-image's grey photographs and those similar to another one, 20 in all.
    """
    paths = [_folder(package) / name for package, members in _NAMES.items() for name in members]
    if further:
        paths += [_folder("skimage") / name for name in _FURTHER]
    return {path.stem: Image.open(path).convert("RGB") for path in paths[:names]}


def crops(
    count: int,
    width: int = 500,
    height: int = 375,
    seed: int = 0,
    photographs: int | None = None,
    quality: int = 95,
    half: str | None = None,
    further: bool = False,
    smallest: float = 0.6,
) -> Iterator[tuple[str, bytes]]:
    """The photograph's name and the JPEG of each crop, taking photographs in turn; the same for the same seed.

    Args:
        count: number of crops.
        width: width of a crop in pixels, after scaling.
        height: height of a crop in pixels, after scaling.
        seed: seed of positions and sizes.
        photographs: number of photographs, the first ones; all by default.
        quality: JPEG quality.
        half: "left" or "right", to crop from this half only.
        further: see `load`.
        smallest: minimum size of a crop, as a share of the largest that fits.
    """
    sources = [(name, _half(photograph, half)) for name, photograph in load(photographs, further).items()]
    random = np.random.default_rng(seed)
    for number in range(count):
        name, photograph = sources[number % len(sources)]
        scale = random.uniform(smallest, 1.0) * min(photograph.width / width, photograph.height / height)
        size = int(width * scale), int(height * scale)
        left, top = (
            int(random.integers(0, whole - part + 1)) for whole, part in zip(photograph.size, size, strict=True)
        )
        crop = photograph.resize((width, height), Image.Resampling.BILINEAR, (left, top, left + size[0], top + size[1]))
        written = io.BytesIO()
        crop.save(written, "JPEG", quality=quality)
        yield name, written.getvalue()


def write_folder(path: Path, count: int, **options: Any) -> list[tuple[Path, bytes]]:
    """Writes `crops` as PATH/PHOTOGRAPH/NUMBER.jpg; returns paths and contents in the order of the paths."""
    written = []
    for number, (name, content) in enumerate(crops(count, **options)):
        file = path / name / f"{number:06d}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
        written.append((file, content))
    return sorted(written)


def write_halves(path: Path, train: int, held_out: int, side: int) -> Path:
    """Writes square crops of all 20 photographs as PATH/train and PATH/val, unless they are there; returns PATH.

    Training crops come from the left halves, the others from the right ones. Several processes may call this at once:
    PATH appears when it is complete.

    Args:
        path: the folder.
        train: number of crops of left halves.
        held_out: number of crops of right halves.
        side: height and width of a crop, in pixels.
    """
    if path.exists():
        return path
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        for name, half, count, seed in (("train", "left", train, 0), ("val", "right", held_out, 1)):
            write_folder(part / name, count, width=side, height=side, seed=seed, half=half, further=True, smallest=0.4)
        part.rename(path)
    except OSError:
        if not path.exists():  # another process was quicker
            raise
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return path


def quality_for(mean_bytes: int, **options: int) -> int:
    """The JPEG quality at which `crops` have about `mean_bytes` on average; only a few crops are tried."""
    tried = 4 * len(_NAMES["skimage"] + _NAMES["sklearn"])

    def difference(quality: int) -> float:
        sizes = [len(content) for _, content in crops(tried, quality=quality, **options)]
        return abs(float(np.mean(sizes)) - mean_bytes)

    return min(range(90, 101), key=difference)


def write_like_imagenet(path: Path, count: int, mean_bytes: int = 110_000) -> int:
    """Writes crops of 500 x 375 with about as many bytes as ImageNet's files; returns their total bytes.

    Crops are smoother than photographs straight from a camera, so it takes a high quality to reach as many bytes.
    """
    quality = quality_for(mean_bytes)
    return sum(len(content) for _, content in write_folder(path, count, quality=quality))


def _half(photograph: Image.Image, half: str | None) -> Image.Image:
    if half is None:
        return photograph
    begin, end = (round(share * photograph.width) for share in _HALVES[half])
    return photograph.crop((begin, 0, end, photograph.height))


def _folder(package: str) -> Path:
    found = importlib.util.find_spec(package)
    if found is None or not found.origin:
        raise ImportError(
            f"The photographs come with {package}, which is not installed: run `pip install '.[examples]'`."
        )
    return Path(found.origin).parent / _SHIPPED[package]
