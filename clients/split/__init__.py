"""The client's half of split training: sessions, streams, evaluation through the cut."""
