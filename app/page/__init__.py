"""The page of a run: what its results folder says, live and afterwards, in one HTML file."""
