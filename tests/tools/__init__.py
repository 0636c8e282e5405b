"""opcheck, gradcheck and the profiler."""
