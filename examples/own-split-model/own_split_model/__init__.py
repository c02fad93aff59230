"""A Flower app with a model and data of its own, split with Espalier."""
