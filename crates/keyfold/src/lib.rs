//! keyfold-keyfold
