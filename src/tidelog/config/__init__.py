"""The one definition of every setting: name, type, default, documentation."""
