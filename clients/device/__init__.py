"""What a node says of its machine, and the gateway of an edge that has a host of its own."""
