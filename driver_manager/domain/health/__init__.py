"""What health-watch judges: samples of a probe, the states they lead to, what is published. Pure."""
