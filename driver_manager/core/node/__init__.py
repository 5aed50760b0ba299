"""What every program does to its Node the same way."""
