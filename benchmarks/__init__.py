"""One script a question; `make bench-NAME` runs bench_NAME.py. Results with date and processor go to results/."""
