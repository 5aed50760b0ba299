"""Whose pods are on a node: operands by their deploy labels, users' pods by what they ask for. Pure."""
