"""A process that does nothing and ends with its parent. It imports none of our modules."""

import os
import time

LOOK_S = 1.0

if __name__ == "__main__":
    parent = os.getppid()
    while os.getppid() == parent:
        time.sleep(LOOK_S)
