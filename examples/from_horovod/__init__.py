"""The scripts that Horovod's users run first, on Keras 3; README.md lists which script is which."""
