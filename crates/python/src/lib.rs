//! keyfold-python
