"""Lets the tests of this folder import what they share by its full name, however pytest was started."""

import sys
from pathlib import Path

ROOT = str(Path(__file__).parents[2])
if ROOT not in sys.path:
    sys.path.append(ROOT)
