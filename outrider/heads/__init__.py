"""Draft heads: small networks that draft from a target's hidden states."""
