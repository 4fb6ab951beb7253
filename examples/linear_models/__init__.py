"""Linear classifiers on sparse data, distributed as in SparCML's MPI-OPT (section 8.2).

`libsvm` reads a rank's share of the samples, `losses` defines the objectives, `exchange` combines the ranks' sparse
vectors, and `sgd` and `coordinates` are the two methods. examples/linear.py is the script.
"""

from examples import extras

extras.need("sklearn")  # which brings SciPy, too
