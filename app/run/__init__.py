"""A run from its checked config to its results folder."""
