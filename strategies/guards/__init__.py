"""Bounds on what one reply can do to a model."""
