"""The networks that examples and benchmarks train, of any width; each is written once, here."""
