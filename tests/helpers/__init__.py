"""What tests of several folders share, and no fixture is."""
