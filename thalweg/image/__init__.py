"""`tf.image`: what users do to pictures, as graph code over the image ops."""

from thalweg.image import colour, geometry, quality, resize

__all__ = ["colour", "geometry", "quality", "resize"]
