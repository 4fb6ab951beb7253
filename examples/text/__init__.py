"""Sentence pairs for training a translator: where they come from, pieces, batches, decoding and scores."""
