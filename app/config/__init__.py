"""The run config: its sections, how it is parsed, and what does not go together."""
