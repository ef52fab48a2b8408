"""What rounding may do to a decision."""

TIE = 0.1
"""Where a verifier's rows depend on the pass, a lead this small (of logits) may change sides."""
