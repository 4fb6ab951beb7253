"""Data from a slow network file system to memory: read once, kept on disk, shared by a whole node."""
