"""Neural networks: convolutions, pooling, normalisation, softmax, fused updates."""
