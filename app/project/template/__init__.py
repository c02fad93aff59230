"""A task, a strategy and an algorithm of your own for Espalier's app."""
