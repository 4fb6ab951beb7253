"""What the benchmarks run on: namespaces as nodes, launchers, workers, and other traffic."""
