"""What is sent of a gradient: which elements (`selectors`, with `error_feedback` for the others), in how many bits.

Beside them stand Horovod's own casts, under the names of `horovod.tensorflow.compression`.
"""

from hvd_sparse.compression.horovod import Compression, Compressor, FP16Compressor, NoneCompressor

__all__ = ["Compression", "Compressor", "FP16Compressor", "NoneCompressor"]
