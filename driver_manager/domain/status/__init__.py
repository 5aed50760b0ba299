"""What `status` concludes from the facts: the headline, and what needs a hand."""
