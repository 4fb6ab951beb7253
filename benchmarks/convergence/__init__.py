"""How accurate models become, by recipe, over many trainings."""
