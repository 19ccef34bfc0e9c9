"""Files as users bring them, written for slime; run unchanged."""
