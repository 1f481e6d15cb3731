"""gRPC's core tells standard error of errors alone, unless GRPC_VERBOSITY says otherwise. To import before grpc.

As it comes it also tells, in a form of its own, that the other side closed a connection which nobody used.
"""

import os

os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
