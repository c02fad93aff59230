"""Reports: what a run writes, counts, draws and shows."""
