"""The docs as a site: what it is made of, and how it is built."""
