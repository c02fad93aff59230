"""How a model is cut into blocks."""
