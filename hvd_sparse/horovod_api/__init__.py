"""What Horovod's users call besides gradient exchange, under Horovod's names and with its arguments."""
