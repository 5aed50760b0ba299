"""Pure part: facts, decisions and plans as data. Standard library only; no clock, environment or I/O."""
