"""The orchestrator: owns sequences, pairs workers, commits and streams."""
