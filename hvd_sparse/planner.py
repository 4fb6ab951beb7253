"""The command `python -m hvd_sparse.planner`; hvd_sparse/tuning/planner.py does its work."""

from hvd_sparse.tuning.planner import main

if __name__ == "__main__":
    main()
