"""What imagenet.py is made of: stages, layouts of data sets, samples, augmentation, accuracy."""
