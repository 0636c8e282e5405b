"""`keyfold.Tensor`, and the functions that make tensors."""
