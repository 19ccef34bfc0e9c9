"""A process that does nothing, and ends with the one that has started it. It imports nothing of ours."""

import os
import time

LOOK_S = 1.0

if __name__ == "__main__":
    parent = os.getppid()
    while os.getppid() == parent:
        time.sleep(LOOK_S)
