"""Launch scripts for clusters."""
