"""Whether a drafter pays for a target: measured on running services, judged by the formula of
``docs/draft-length.md``."""
