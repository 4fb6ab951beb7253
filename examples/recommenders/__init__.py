"""Recommenders: tables of numbers and categories with a yes or no to predict, their sources, and the DLRM."""
