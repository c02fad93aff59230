"""An algorithm of one's own for the app."""
