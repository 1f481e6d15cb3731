"""Words for the numbers by which a fleet's protocol names states and roles."""


def state_name(state: int) -> str:
    """`WORKER_STATE_READY` as `ready`, and what this version does not know as `unknown`."""
    from polyfleet.placement.proto import state_from_proto

    return state_from_proto(state).value


def role_name(role: int) -> str:
    """`WORKER_ROLE_PREFILL` as `prefill`; both where nothing else is said."""
    from polyfleet.placement.proto import role_from_proto

    return role_from_proto(role).value
