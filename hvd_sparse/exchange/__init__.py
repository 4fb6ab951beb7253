"""One step's exchange: all gradients go in, in buckets, and their means over all ranks come out."""
