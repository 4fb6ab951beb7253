"""Scaled layer widths."""


def scaled(count: int, width: float) -> int:
    """A number of channels, features or heads times a width; raises ValueError if the product is not a whole number."""
    scaled = count * width
    if scaled < 1 or scaled != int(scaled):
        raise ValueError(f"Expected a width that leaves whole numbers of channels, got {width} of {count}.")
    return int(scaled)
