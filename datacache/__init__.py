"""Data from a slow network file system in memory: read once, kept on disk, shared by a whole node.

    import datacache

    cache = datacache.DataCache(
        source=datacache.ImageFolder("/data/train"), decode=decode, local_dir="/scratch/cache", memory_bytes=40 << 30
    )
    model.fit(cache.dataset(batch_size=256).map(augment), epochs=90)

It needs neither Horovod nor `hvd_sparse`, and it needs TensorFlow only for `DataCache.dataset`.
"""

from datacache.any_files import Files
from datacache.cache import DataCache
from datacache.errors import (
    DamagedFileError,
    DecodeError,
    NoSpaceError,
    SourceChangedError,
    UnsuitableFileSystemError,
)
from datacache.indexed import Indexed
from datacache.order import Schedule
from datacache.sources import ImageFolder, Source, TFRecords
from datacache.tar import Tar
from datacache.world import World

__all__ = [
    "DamagedFileError",
    "DataCache",
    "DecodeError",
    "Files",
    "ImageFolder",
    "Indexed",
    "NoSpaceError",
    "Schedule",
    "Source",
    "SourceChangedError",
    "TFRecords",
    "Tar",
    "UnsuitableFileSystemError",
    "World",
]
