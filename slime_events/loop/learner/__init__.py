"""A learner: a run that generates nothing and is trained on the rollouts of another one, decided in its own way."""
