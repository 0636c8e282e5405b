"""`python -m keyfold`."""
