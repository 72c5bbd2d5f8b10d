"""What pytest loads in each process: the alias, and the names that left Python and NumPy."""

import thalweg.alias
from thalweg.alias import legacy

legacy.restore()
thalweg.alias.install(replace=True)
