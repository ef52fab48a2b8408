"""Draft sources that look tokens up instead of computing them."""
