"""A mixed load: who asks for what and when, what is decided about it, and what is checked."""
