"""What Horovod's users run first, on Keras 3; README.md tells which script is which."""
