"""What networks are made of: convolutions, pooling, normalisation, softmax, fused updates."""
