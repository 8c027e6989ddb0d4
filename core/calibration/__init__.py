"""What data says of a model: calibration texts, and the statistics of each layer's inputs over them."""
