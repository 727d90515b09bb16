"""Encoders × decoders: every system is one composition."""
