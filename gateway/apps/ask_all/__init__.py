"""`ask_all`: one request goes to several backends, and its answer has one choice from each."""
