"""Accuracy by the number of nodes."""
