"""What an update does with gradients: the optimizer, its learning rate, and the moving average of the weights."""
