"""The sections of the run config, and the forms of their values."""
