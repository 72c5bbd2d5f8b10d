"""What runs a partition: devices, their memory and their programs."""
