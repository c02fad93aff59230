"""A Flower app with a strategy of its own, nested with Espalier."""
