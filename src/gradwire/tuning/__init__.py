"""Measures a running job, plans for it, and confirms the plan on real steps."""
