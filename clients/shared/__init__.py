"""What clients and servers both need, and is no message: arrays, cuts, generators, text."""
