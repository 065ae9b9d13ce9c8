"""What a new drafter or verifier must pass, and the toy target it is tried on.

from betoken.testing import check_drafter, check_verifier

def test_my_drafter() -> None:
    check_drafter(lambda: MyDrafter(depth=3))
"""

from betoken.testing.drafter import check_drafter, check_tree
from betoken.testing.running import ConformanceError, plain_tokens
from betoken.testing.scripted import DrawingDrafter, OracleDrafter, RandomTreeDrafter
from betoken.testing.toy import ToyCache, ToyTarget
from betoken.testing.verifier import check_verifier

__all__ = [
    "ConformanceError",
    "DrawingDrafter",
    "OracleDrafter",
    "RandomTreeDrafter",
    "ToyCache",
    "ToyTarget",
    "check_drafter",
    "check_tree",
    "check_verifier",
    "plain_tokens",
]
