"""What ranks import before Keras, which else imports scikit-learn and matplotlib: a third of their start."""

import sys

sys.modules.update({"sklearn": None, "matplotlib": None})
