"""What runs that are over say together: tables, and learning curves, of runs that differ in some settings."""
