"""For all tests: Ctrl-C works, also where they run in the background."""

import signal

# a shell without job control switches it off for what it starts with &
signal.signal(signal.SIGINT, signal.default_int_handler)
