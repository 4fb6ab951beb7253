"""Widths that are scaled."""


def scaled(count: int, width: float) -> int:
    """A number of channels, features or heads times a width; ValueError where that is no whole number."""
    scaled = count * width
    if scaled < 1 or scaled != int(scaled):
        raise ValueError(f"Expected a width that leaves whole numbers of channels, got {width} of {count}.")
    return int(scaled)
