"""What the commands in this folder's parent are made of."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))  # for lab
