"""Whether what somebody else wrote fits: `check_algorithm`, `check_task`, and the command `espalier check`."""
