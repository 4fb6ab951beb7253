"""What the studies of many trainings share: fingerprints of their sources, and stored runs."""
