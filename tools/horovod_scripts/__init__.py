"""Runs Horovod's own examples and tests against hvd_sparse, from a checkout or archive of Horovod.

    python -m tools.horovod_scripts --source CHECKOUT --report docs/horovod_scripts.md

The scripts are copied to a temporary folder and changed there: the import line, and what Keras 3 or TensorFlow 2 have
removed (`changes.py`). The report lists each change, and one sentence for everything that does not pass (`reasons.py`).
"""
