"""The simulated world: the in-process runtime."""
