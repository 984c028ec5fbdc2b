"""For all tests."""

from hypothesis import settings

# How long an example takes says how busy the machine is. What must be fast is measured in bench/.
settings.register_profile("tidelog", deadline=None)
settings.load_profile("tidelog")
