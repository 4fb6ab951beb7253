"""Models in stages on several ranks, with few of their activations on the network (DCT; Gupta et al. 2021).

- `rows`: of each sample's row the largest elements, and rows that are zero elsewhere.
- `threshold`: `Threshold`, the layer that passes only those.
"""

from hvd_sparse.pipeline.threshold import Threshold

__all__ = ["Threshold"]
