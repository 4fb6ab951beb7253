"""Compressors: which elements of a gradient are sent, in how many bits, and what happens to the rest.

This module itself exports Horovod's casts, under the names of `horovod.tensorflow.compression`.
"""

from hvd_sparse.compression.horovod import Compression, Compressor, FP16Compressor, NoneCompressor

__all__ = ["Compression", "Compressor", "FP16Compressor", "NoneCompressor"]
