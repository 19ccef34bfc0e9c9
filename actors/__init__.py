"""The processes of a run as Ray actors, each a thin shell around a decision or a trainer."""
