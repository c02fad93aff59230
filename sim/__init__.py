"""The simulated world: the in-process runtime, cells and radio channel, devices, content requests."""
