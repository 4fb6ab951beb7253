"""Linear classifiers on sparse data, distributed as SparCML's MPI-OPT does it (section 8.2).

`libsvm` reads a rank's share of the samples, `losses` has what is minimised, `exchange` how ranks put sparse vectors
together, `sgd` and `coordinates` are the two methods. examples/linear.py is the script.
"""
