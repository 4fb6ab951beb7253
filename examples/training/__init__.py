"""What the training scripts share: arguments, learning rates by epoch, losses, and the log of the time to an accuracy.

A script makes its parser with `arguments.parser`, starts with `arguments.begin`, compiles its model with
`arguments.optimizer` and `losses.SmoothedCrossentropy`, and gives `fit` the callbacks of `monitor.callbacks`.
"""
