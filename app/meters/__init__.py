"""What counts a run's bytes."""
