"""Between which numbers of workers an autoscaled deployment or pool stays. Pure."""

from polyfleet.v1 import fleet_pb2 as pb


def within(aims: pb.Autoscaling, workers: int) -> int:
    """The number, or the nearest that the aims allow."""
    return min(max(workers, aims.min_workers), max(1, aims.max_workers))
