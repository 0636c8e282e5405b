"""The package as it is published, imported, documented and extended."""
