#!/bin/sh
# Harbor copies this script into the container after the agent has ended, runs it, and reads the reward file.
if grep -qx '[5-9]' /app/answer; then reward=1; else reward=0; fi
echo "$reward" > /logs/verifier/reward.txt
