"""What all of the app stands on: errors of one line, durable files, checkpoints, objects that are named in settings."""
