"""What the commands in this folder's parent are made of."""
