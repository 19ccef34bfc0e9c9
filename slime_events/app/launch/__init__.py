"""Starting a run: server, cluster, actors, engines; watching it; ending it."""
