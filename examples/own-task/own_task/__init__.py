"""Models and data of one's own for Espalier's app."""
