"""Recommenders: tables of numbers and categories with a yes or no to tell, where they come from, and the DLRM."""
