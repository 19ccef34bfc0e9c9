"""What is decided: pure decisions and folds, algorithms, rewards, filters, configuration; and the command line on top."""
