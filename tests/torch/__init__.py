"""PyTorch: its tensors, its operators here, keyfold's operators there."""
