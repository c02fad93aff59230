"""What counts a run's bytes and seconds."""
