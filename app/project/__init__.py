"""A project of one's own that runs the app with its own task, strategy and algorithm: `espalier new`."""
