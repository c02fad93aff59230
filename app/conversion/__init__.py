"""Published data sets as they are unpacked, made into image folders that a run reads."""
