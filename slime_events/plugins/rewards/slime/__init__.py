"""slime's `rm_hub` for users' files: its functions that grade samples, and the helpers of its graders."""
