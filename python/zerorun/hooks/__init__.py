"""The inside of forward and backward: gathers, gradients, memory of full parameters."""
