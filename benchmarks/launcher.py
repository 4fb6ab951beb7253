"""horovodrun, which need not find out that Horovod has Gloo: for that it imports TensorFlow, five seconds a launch."""

import sys

from horovod.runner import launch

launch.gloo_built = lambda verbose=False: True

if __name__ == "__main__":
    sys.exit(launch.run_commandline())
