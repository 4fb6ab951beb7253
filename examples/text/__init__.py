"""Sentence pairs for training a translator: corpora, word pieces, batches, decoding and scores."""
