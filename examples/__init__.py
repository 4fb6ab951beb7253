"""One script a use."""
