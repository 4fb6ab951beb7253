"""Single passes over memory, on CPUs and GPUs: selection, LARS and LAMB, and the optimizer in the exchange."""
