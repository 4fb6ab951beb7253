"""Models in stages: bytes, speed, quality and selection of DCT."""
