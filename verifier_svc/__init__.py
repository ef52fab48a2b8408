"""The verifier: runs the target model and decides what is accepted."""
