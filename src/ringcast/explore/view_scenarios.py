from ringcast.explore.views import Kind, Scenario
from ringcast.model import Stream

FIFO, UNIFORM = Stream.FIFO, Stream.UNIFORM
SCENARIOS = {
    each.name: each
    for each in (
        Scenario("crash", ("ABC",), (Kind(0, FIFO),)),
        Scenario("crash, uniform", ("ABC",), (Kind(0, UNIFORM),)),
        Scenario("crash, not retained", ("ABC",), (Kind(0, FIFO, 1, False),)),
        Scenario("join", ("AB", "C"), (Kind(1, FIFO),)),
        Scenario("two parts", ("AB", "CD"), (Kind(1, FIFO),)),
        Scenario("three parts", ("A", "B", "C"), (Kind(0, UNIFORM),)),
        Scenario("leave", ("ABC",), (Kind(1, FIFO),), leaver="B"),
    )
}
