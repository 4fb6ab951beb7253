"""What the library knows of Keras's optimizers and their variables."""
