"""HTTP as the product fetches it: with limits."""
