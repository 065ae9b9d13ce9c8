"""How many nodes a step should score: cost models and node counts."""
