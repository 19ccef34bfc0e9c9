#!/bin/sh
# Harbor copies this into the container after the agent has ended, and reads what it writes.
if grep -qx '[5-9]' /app/answer; then reward=1; else reward=0; fi
echo "$reward" > /logs/verifier/reward.txt
