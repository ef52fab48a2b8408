"""The release packet: what receipts, audits and tests say, for the people who decide."""
