"""What changes of the ranks cost an elastic job, and what it costs that they may come."""
