"""Several clients of one process side by side, as one model."""
