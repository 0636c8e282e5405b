//! keyfold-ops
