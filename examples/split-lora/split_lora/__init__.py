"""Adapters of a decoder on both sides of a cut."""
