"""How a PyTorch model is divided: its parts, units of gathering, dtypes and places on ranks."""
