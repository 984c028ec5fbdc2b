"""A disk as a crash would leave it, opened and checked in a world of its own: the running one does not notice.

``live_on`` sees to it that what came back can be lived with: appends go on, and survive the next crash.
"""

from simulation.disk import SimulatedDisk
from tests.log.storage_check import check_all_visible, require
from tests.log.storage_reopening import check_came_back
from tests.log.storage_world import World


def image_world(world: World, image: SimulatedDisk, seed: str) -> World:
    """Another world on a crash image, with copies of the models."""
    image.set_free_bytes(None)  # A start needs room for the journal; who has none is told so, and nothing is lost.
    other = World(seed, image, world.scheduler.now_us)
    image.clock = other.clock
    other.models = {key: model.copy() for key, model in world.models.items()}
    other.deleted = [model.copy() for model in world.deleted]
    other.value_number = world.value_number
    other.leader_epoch = world.leader_epoch
    other.generation = world.generation + 1
    return other


def check_directory(world: World) -> None:
    """Every partition of an opened directory against its model, with all of it below the high watermark too."""
    for log, model, history in check_came_back(world.directory, world.models, world.deleted):
        check_all_visible(model, log, history)


def live_on(world: World) -> None:
    """What came back is a log like any other: it takes records, and keeps them through the next crash."""
    for key in list(world.models):
        world.retry(key, 1)
        world.append_idempotent(key, 1, 2, wait=True)
        world.append(key, [1, 1], 3, wait=True)
    world.settle()
    for _, model in world.online():
        require(model.acknowledged_end == model.end_offset, f"{model.key}: the wait for {model.end_offset} was not answered")
    world.crash("some", world.randomness.fork("live on"))
    world.reopen()
