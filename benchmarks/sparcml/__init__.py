"""Sparse collectives: their times, merging, and a linear model by SparCML."""
