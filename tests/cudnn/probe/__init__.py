"""The cases that were asked of the real libcudnn, as graphs: see README.md here."""
