"""Horovod's compression of gradients and tensors, under its names.

Together with a recipe, `Compression.fp16` means that values travel as float16 (`wire_dtype="float16"`).
"""

from horovod.tensorflow.compression import Compression, Compressor, FP16Compressor, NoneCompressor

__all__ = ["Compression", "Compressor", "FP16Compressor", "NoneCompressor"]
