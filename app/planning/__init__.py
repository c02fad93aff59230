"""What plans are made for: the simulated radio world, or what devices measured of themselves."""
