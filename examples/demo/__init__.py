"""Four ranks train on real images over a slow network, with one recipe after another: `make demo`."""
