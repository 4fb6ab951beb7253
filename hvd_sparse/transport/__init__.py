"""What carries the bytes: Horovod's process sets, and memory that the ranks of one host share."""
