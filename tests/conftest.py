"""For all tests."""

import signal

from hypothesis import settings

# How long an example takes says how busy the machine is. What must be fast is measured in bench/.
settings.register_profile("tidelog", deadline=None)
settings.load_profile("tidelog")

# A shell's background jobs are started with interrupts ignored, and hand that on to the commands that tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
