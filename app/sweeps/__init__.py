"""Many runs: all combinations of some settings, side by side, each in a process of its own."""
