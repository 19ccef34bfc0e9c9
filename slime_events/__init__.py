"""What is decided: decisions and folds, algorithms, rewards, filters, configuration; the command line on top."""
