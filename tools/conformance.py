"""Run TensorFlow's own tests against Thalweg: `python tools/conformance.py <sources>`."""

import sys

from conformance.main import main

if __name__ == "__main__":
    sys.exit(main())
