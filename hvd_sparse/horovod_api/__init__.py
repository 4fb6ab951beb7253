"""What Horovod's users call beside gradients, under Horovod's names and with its arguments."""
