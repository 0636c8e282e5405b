"""Arrays of other libraries as arguments and results."""
