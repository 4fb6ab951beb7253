"""Times, tables, pictures, and where results are written."""
