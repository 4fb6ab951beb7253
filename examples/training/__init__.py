"""Shared parts of the training scripts: arguments, learning rates by epoch, losses, and a log of times and accuracies.

A script makes its parser with `arguments.parser`, starts with `arguments.begin`, compiles its model with
`arguments.optimizer` and `losses.SmoothedCrossentropy`, and gives `fit` the callbacks of `monitor.callbacks`.
"""
