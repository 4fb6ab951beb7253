"""One script per question; `make bench-NAME` runs bench_NAME.py. Reports with date and processor go to results/."""

from quiet_tensorflow import quiet

quiet()
