"""Ways to choose paths, one file each."""

from gradwire.network.routing.coloured import Coloured
from gradwire.network.routing.ecmp import Ecmp
from gradwire.network.routing.ethereal import Ethereal
from gradwire.network.routing.spray import Spray

__all__ = ["Coloured", "Ecmp", "Ethereal", "Spray"]
