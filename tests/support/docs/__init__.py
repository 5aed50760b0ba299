"""Makes the parts of docs/ that the code itself tells, and checks docs/ and README.md against the code."""
