//! cuDNN graphs.
