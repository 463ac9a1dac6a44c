"""The same two, natively."""

from loadgen.reference.streams import Stream as Stream
from loadgen.reference.streams import Timeline as Timeline
