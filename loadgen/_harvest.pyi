"""The same three, natively."""

from loadgen.harvest import Harvest as Harvest
from loadgen.lane import Lane as Lane
from loadgen.log import Log as Log
