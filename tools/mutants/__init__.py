"""Shows that the tests can fail: plants small faults, one at a time, in copies of the sources, and runs the tests.

`python -m tools.mutants --seed 1` plants the listed faults (`listed.py`, `listed_native.py`) and as many that are drawn
by the seed (`planting.py`), reports which tests saw each, and keeps the results in results/mutants/.
"""
