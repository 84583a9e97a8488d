"""Trained heads and datastores by model: heads/MODEL and datastores/MODEL."""
