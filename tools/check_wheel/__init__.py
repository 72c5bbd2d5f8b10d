"""What a user gets who installs the package and nothing else: built, installed, and tried."""
