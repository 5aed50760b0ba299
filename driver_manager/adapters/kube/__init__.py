"""The API server: requests, retries, objects, leases."""
