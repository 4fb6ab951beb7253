"""Compressors: which elements of a gradient are sent, in how many bits, and what happens to the rest.

`compressors`, `quantizers` and `error_feedback` are those of the same names in `hvd`. The other names are Horovod's
casts, under the names of `horovod.tensorflow.compression`.
"""

from hvd_sparse.compression import error_feedback, quantizers
from hvd_sparse.compression import selectors as compressors
from hvd_sparse.compression.horovod import Compression, Compressor, FP16Compressor, NoneCompressor

__all__ = [
    "Compression",
    "Compressor",
    "FP16Compressor",
    "NoneCompressor",
    "compressors",
    "error_feedback",
    "quantizers",
]
