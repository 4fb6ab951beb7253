"""Model averaging over networks that lose messages: quality, steps, and beside another service."""
