"""Misbehaves: leaves a virtual environment in the tree, which would end up in the proposal."""

import subprocess
import sys

subprocess.run([sys.executable, "-m", "venv", "--without-pip", "leftover"], check=True)
print("a virtual environment lies in the tree")
