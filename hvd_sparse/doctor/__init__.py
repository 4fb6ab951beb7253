"""The command `python -m hvd_sparse.doctor`: what is installed, what runs where, what stops training or slows it."""
