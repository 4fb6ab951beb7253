"""Start files for clusters."""
