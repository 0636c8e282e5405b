"""Messages, the classes of errors, and bad input."""
