"""What is written into zerorun's checkpoints and read from them."""
