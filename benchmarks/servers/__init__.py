"""Sharded servers: updates a second, strategies, and time to a score."""
