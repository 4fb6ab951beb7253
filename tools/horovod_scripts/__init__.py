"""Runs Horovod's own examples and tests against hvd_sparse, from a checkout or archive of Horovod that lies elsewhere.

    python -m tools.horovod_scripts --source CHECKOUT --report docs/horovod_scripts.md

What is read is copied to a temporary folder and changed there: the import line, and what Keras 3 or TensorFlow 2 have
dropped (`changes.py`). The report lists each such change, and for whatever does not pass one sentence (`reasons.py`).
"""
