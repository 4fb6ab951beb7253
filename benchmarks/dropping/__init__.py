"""What gradient dropping on servers costs in quality, over many trainings."""
