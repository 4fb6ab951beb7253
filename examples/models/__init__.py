"""The networks that examples and benchmarks train, at any width; each is defined once, here."""
