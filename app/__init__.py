"""The Flower app: run config, wiring of ServerApp and ClientApp, tasks and reports."""

import os

# gRPC reads it when it is imported. Else it writes a line, some as errors, for every connection to a port of ours that
# speaks no TLS, or no right HTTP/2. Where Flower has imported gRPC before the app, whoever starts Flower sets it.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
