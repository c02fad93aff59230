"""Where clients and edges run."""
