"""The pods of a node: operands by their deploy labels, users' pods by what they request."""
