"""Developer programs, most of which generate files in the repository. No run needs them."""
