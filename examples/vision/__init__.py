"""The parts of imagenet.py: stages, data set layouts, samples, augmentation, accuracy."""
