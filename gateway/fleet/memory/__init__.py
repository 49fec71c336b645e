"""Whether what runs on a node fits into its memory."""
