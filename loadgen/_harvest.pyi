"""The same, natively."""

import socket

from loadgen.harvest import Harvest as Harvest
from loadgen.harvest import Read
from loadgen.lane import Lane as Lane
from loadgen.log import Log as Log

INTERFACE: int

def receive(own: socket.socket) -> Read | None: ...
def set_timer(timer: int, due: int) -> None:
    """Let the timerfd ``timer`` expire at ``due``, ns on its clock, more than 0. Raises OSError."""
