"""`tensorflow.python.tf2`: whether TensorFlow 2's behaviour is on. It never is."""


def enabled() -> bool:
    """False."""
    return False
