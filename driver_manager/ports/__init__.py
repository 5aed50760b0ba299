"""What the core needs from the outside, as protocols: a module for each program."""
