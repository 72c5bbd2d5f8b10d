"""The version of Thalweg: the build, the package and `tf.__version__` all read it here."""

__version__ = "0.1.0"
