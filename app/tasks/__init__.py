"""Tasks: the models and the data a run trains on."""
