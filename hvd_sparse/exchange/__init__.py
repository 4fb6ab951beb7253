"""The exchange of a step's gradients, in buckets, for their means over all ranks."""
